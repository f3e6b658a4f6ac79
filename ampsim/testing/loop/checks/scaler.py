"""The check only_update_changes_scaler."""

from collections.abc import Sequence

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.runs import Batch, Make, play

SCALE, GROWTH_INTERVAL = 2.0**8, 3
OTHER = (
    "the loop uses a scaler of its own, or recreates it: its scale and growth tracker restart and are in no "
    "checkpoint. Use the scaler that make receives"
)
JUMPS = "the loop sets or loads the scaler's state during training: change it only with scaler.update()"
AGAIN = (
    "each update counts a finite step, so the scale grows too early: update once, after the last "
    "scaler.step(optimizer)"
)


@check(issue="https://github.com/davda54/sam/issues/97")
def only_update_changes_scaler(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """The scaler passed to make scales all losses, and only its update changes it.

    There may not be more updates than optimizer steps in every batch. A single such batch is
    allowed, because a condition may have skipped the step.
    """
    run = play(make, batches, SCALE, GROWTH_INTERVAL)
    if run.steps is None:
        raise NotApplicableError(
            "the calls of the scaler are visible only for torch loops"
        )
    last = len(batches) - 1
    if late := [batch for batch, _ in run.others if batch > 0 or not run.used]:
        places = ", ".join(str(batches[each].place) for each in dict.fromkeys(late))
        where = f"in batch {places}"
        return Broken(where, late[-1], OTHER, seen="another scaler scales the loss")
    if run.jumps:
        where = f"in {len(batches)} batches"
        return Broken(where, last, JUMPS, seen=f"the scaler's {run.jumps[0]}")
    pairs = zip(map(len, run.verdicts), run.steps, strict=True)
    stepping = [(updates, steps) for updates, steps in pairs if updates and steps]
    if len(stepping) < 2 or any(updates <= steps for updates, steps in stepping):
        return None
    seen = "the scaler is updated {} times, but optimizers step {} time(s)".format(
        *stepping[0]
    )
    return Broken(f"in each of {len(stepping)} batches", last, AGAIN, seen=seen)
