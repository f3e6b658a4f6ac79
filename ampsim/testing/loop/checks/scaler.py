"""The scaler changes by its update only."""

from collections.abc import Sequence

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, play
from ampsim.testing.loop.state import State, differences, same

SCALE, GROWTH_INTERVAL = 2.0**8, 3
MOST = 4  # updates in one batch that are looked for
OTHER = (
    "a scaler of the loop's own, or one that is made anew: its scale and its count are in no checkpoint, and begin "
    "again; use the one that make is given"
)
JUMPS = "its state is set, or loaded, in the middle of training: leave it to scaler.update()"
AGAIN = (
    "each update counts a clean step, so that the scale grows too soon: update once, after the last "
    "scaler.step(optimizer)"
)


@check(issue="https://github.com/davda54/sam/issues/97", shrinks=False)
def only_update_changes_scaler(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """The scaler that make is given scales the losses, from first to last, and only its update changes it.

    An update after which no optimizer has stepped counts a step that nobody took, where that is so in each batch: one
    such batch may be a guard's. In JAX, whose scaler is a value, an update is known by what it makes of one, and counts
    a step that nobody took where there are fewer backward passes.
    """
    run = play(make, batches, SCALE, GROWTH_INTERVAL)
    if run.steps is None:
        return _of_values(run, batches)
    last = len(batches) - 1
    late = [batch for batch, _ in run.others if batch > 0 or not run.used]
    if late:
        places = ", ".join(str(batches[each].place) for each in dict.fromkeys(late))
        return Broken(
            f"in batch {places}", late[-1], cause=OTHER, seen="the loss is scaled by another scaler"
        )
    if run.jumps:
        return Broken(
            f"in {len(batches)} batches", last, cause=JUMPS, seen=f"the scaler's {run.jumps[0]}"
        )
    return _again([*map(len, run.verdicts)], run.steps, batches, "optimizers step")


def _of_values(run: Run, batches: Sequence[Batch]) -> Broken | None:
    """Say that a scaler's states, one before each batch, do not follow from one another by updates."""
    counts: list[int] = []
    if not run.again(run.scalers[0]):
        raise NotApplicableError(
            "only the scaler of a loop of torch, and those of JAX, are seen between updates"
        )
    for step, batch in enumerate(batches):
        falls = [*run.scales, run.scale][step + 1] < run.scales[step]
        count = _updates(run, *run.scalers[step : step + 2], falls=falls)
        if count is None:
            left, right = (run.scalers[at] for at in (step, step + 1))
            changed = differences(left, right)[0]
            seen = f"{changed.name} was {changed.left}, and {changed.right} after the step, which no update makes of it"
            return Broken(f"in batch {batch.place}", step, cause=JUMPS, seen=seen)
        counts.append(count)
    return _again(counts, run.passes or [], batches, "a scaled loss is differentiated")


def _updates(run: Run, before: State, after: State, *, falls: bool) -> int | None:
    """Return how many updates led from one state to another, of which some found an inf if it falls; None for many."""
    states = [before]
    for count in range(MOST + 1):
        if any(all(same(each.get(name), after.get(name)) for name in after) for each in states):
            return count
        states = [new for each in states for new in run.again(each)[: 1 + falls]]
    return None


def _again(
    updates: Sequence[int], steps: Sequence[int], batches: Sequence[Batch], what: str
) -> Broken | None:
    """Say that each batch that steps updates more often than it steps."""
    stepping = [(many, few) for many, few in zip(updates, steps, strict=True) if many and few]
    if len(stepping) < 2 or any(many <= few for many, few in stepping):
        return None
    many, few = stepping[0]
    seen = f"the scaler is updated {many} times where {what} {few} time{'s' * (few > 1)}"
    return Broken(f"in each of {len(stepping)} batches", len(batches) - 1, cause=AGAIN, seen=seen)
