"""The scaler changes by its update only."""

from collections.abc import Sequence

from ampsim.testing.loop.law import AGAIN, JUMPS, OTHER, Broken, NotAsked, Verdict, law
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, play

SCALE, GROWTH_INTERVAL = 2.0**8, 3


@law(issue="https://github.com/davda54/sam/issues/97", shrinks=False)
def scaler_changes_by_update_only(make: Make, batches: Sequence[Batch]) -> Verdict:
    """The scaler that make is given scales the losses, from first to last, and only its update changes it.

    An update after which no optimizer has stepped counts a step that nobody took, where that is so in each batch: one
    such batch may be a guard's.
    """
    run = play(make, batches, SCALE, GROWTH_INTERVAL)
    if run.steps is None:
        return NotAsked("only the scaler of a loop of torch is seen between its updates")
    last = len(batches) - 1
    late = [batch for batch, _ in run.others if batch > 0 or not run.used]
    if late:
        places = ", ".join(str(batches[each].place) for each in dict.fromkeys(late))
        return Broken(f"in batch {places}", late[-1], pattern=OTHER, seen="the loss is scaled by another scaler")
    if run.jumps:
        return Broken(f"in {len(batches)} batches", last, pattern=JUMPS, seen=f"the scaler's {run.jumps[0]}")
    return _updates_again(run, batches)


def _updates_again(run: Run, batches: Sequence[Batch]) -> Broken | None:
    """Say that each batch that steps updates more often than optimizers step."""
    counts = [(len(found), steps) for found, steps in zip(run.verdicts, run.steps or (), strict=True)]
    stepping = [(updates, steps) for updates, steps in counts if steps and updates]
    if len(stepping) < 2 or any(updates <= steps for updates, steps in stepping):
        return None
    updates, steps = stepping[0]
    seen = f"the scaler is updated {updates} times where optimizers step {steps} time{'s' * (steps > 1)}"
    return Broken(f"in each of {len(stepping)} batches", len(batches) - 1, pattern=AGAIN, seen=seen)
