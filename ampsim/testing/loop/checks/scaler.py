"""The check only_update_changes_scaler."""

from collections.abc import Sequence

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, play
from ampsim.testing.loop.state import State, differences, same

SCALE, GROWTH_INTERVAL = 2.0**8, 3
MOST = 4  # updates in one batch that are looked for
OTHER = (
    "the loop uses a scaler of its own, or recreates it: its scale and growth tracker restart and are in no "
    "checkpoint. Use the scaler that make receives"
)
JUMPS = (
    "the loop sets or loads the scaler's state during training: change it only with scaler.update()"
)
AGAIN = (
    "each update counts a finite step, so the scale grows too early: update once, after the last "
    "scaler.step(optimizer)"
)


@check(issue="https://github.com/davda54/sam/issues/97")
def only_update_changes_scaler(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """The scaler passed to make scales all losses, and only its update changes it.

    There may not be more updates than optimizer steps in every batch. A single such batch is allowed, because a
    condition may have skipped the step. In JAX a scaler is a value: updates are recognized by their results and
    compared with the number of backward passes.
    """
    run = play(make, batches, SCALE, GROWTH_INTERVAL)
    if run.steps is None:
        return _of_values(run, batches)
    last = len(batches) - 1
    late = [batch for batch, _ in run.others if batch > 0 or not run.used]
    if late:
        places = ", ".join(str(batches[each].place) for each in dict.fromkeys(late))
        return Broken(
            f"in batch {places}", late[-1], cause=OTHER, seen="another scaler scales the loss"
        )
    if run.jumps:
        return Broken(
            f"in {len(batches)} batches", last, cause=JUMPS, seen=f"the scaler's {run.jumps[0]}"
        )
    return _again([*map(len, run.verdicts)], run.steps, batches, "optimizers step")


def _of_values(run: Run, batches: Sequence[Batch]) -> Broken | None:
    """Return a failure if updates do not explain the scaler's states before each batch."""
    counts: list[int] = []
    if not run.again(run.scalers[0]):
        raise NotApplicableError(
            "the state between updates is visible only for torch loops and for scalers of JAX"
        )
    for step, batch in enumerate(batches):
        falls = [*run.scales, run.scale][step + 1] < run.scales[step]
        count = _updates(run, *run.scalers[step : step + 2], falls=falls)
        if count is None:
            left, right = (run.scalers[at] for at in (step, step + 1))
            changed = differences(left, right)[0]
            seen = f"{changed.name} changed from {changed.left} to {changed.right} in the step, which no update does"
            return Broken(f"in batch {batch.place}", step, cause=JUMPS, seen=seen)
        counts.append(count)
    return _again(counts, run.passes or [], batches, "a scaled loss is differentiated")


def _updates(run: Run, before: State, after: State, *, falls: bool) -> int | None:
    """Return how many updates lead from one state to another, with overflows if `falls`; None for many."""
    states = [before]
    for count in range(MOST + 1):
        if any(all(same(each.get(name), after.get(name)) for name in after) for each in states):
            return count
        states = [new for each in states for new in run.again(each)[: 1 + falls]]
    return None


def _again(
    updates: Sequence[int], steps: Sequence[int], batches: Sequence[Batch], what: str
) -> Broken | None:
    """Return a failure if each batch with a step has more updates than steps."""
    stepping = [(many, few) for many, few in zip(updates, steps, strict=True) if many and few]
    if len(stepping) < 2 or any(many <= few for many, few in stepping):
        return None
    many, few = stepping[0]
    seen = f"the scaler is updated {many} times, but {what} {few} time{'s' * (few > 1)}"
    return Broken(f"in each of {len(stepping)} batches", len(batches) - 1, cause=AGAIN, seen=seen)
