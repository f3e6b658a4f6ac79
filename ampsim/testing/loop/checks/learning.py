"""It learns."""

import re
from collections.abc import Sequence

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.checks.excused import DATA
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin
from ampsim.testing.loop.state import same

FEWEST = 3  # clean steps, of which a count must have counted one
COUNTS = re.compile(r"(^|\.)(last_epoch|_step_count|n_averaged|(global_?)?steps?|num_updates)$")
STATE_OF_OPTIMIZER = re.compile(r"\.(state|param_groups)\.")
SMALL = 1e-4  # of a parameter: gradients below may rightly be lost when they are added to it
STILL = (
    "it is named in state and never called: step it where the optimizer has stepped. What moves once per epoch is "
    "called `data` in state, or given batches of more than one"
)
SKIPPED = "every step is skipped: look for inf or NaN in the loss at this scale"
UNREACHED = (
    "it is not in the graph of the loss, or detached from it; if it is not to be trained, take it from the optimizer, "
    "or requires_grad_(False)"
)
STUCK = (
    "it has gradients and no optimizer steps with them, or the move is lost in the parameter's dtype: keep float32 "
    "parameters"
)


@check(issue="https://github.com/deepspeedai/DeepSpeed/issues/8415", shrinks=False)
def step_changes_parameters(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """Within the given batches, with clean gradients, every trained parameter moves, and what counts their steps.

    Trained is what an optimizer in state has. A parameter whose gradients are all zero, or very small beside it, when
    the optimizer steps is not expected to move. What counts steps is known by its name: a schedule's, an average's, or
    one that ends in ``step`` or ``steps``.
    """
    run = begin(make, 1.0)
    start = run.parameters()
    if not start:
        raise NotApplicableError(
            "no parameters are known: name the model, or the optimizer, in state"
        )
    with run.gradients() as largest:
        advance(run, batches)
    end = run.parameters()
    still = [
        name
        for name, array in start.items()
        if array.size and np.array_equal(array, end.get(name, []))
    ]
    where, step = f"in {len(batches)} batches", len(batches) - 1
    if len(still) == len(start):
        skipped = sum(run.overflows(index) for index in range(len(batches)))
        seen = f"no parameter moved; {skipped} of {len(batches)} steps were skipped"
        return Broken(where, step, cause=SKIPPED if skipped else STUCK, seen=seen)
    for name in still:
        if largest.get(name, 0.0) < 0:
            return Broken(
                where,
                step,
                cause=UNREACHED,
                seen=f"{name} never had a gradient when its optimizer stepped",
            )
        if largest.get(name, 0.0) > SMALL * max(1.0, float(np.abs(start[name]).max())):
            seen = f"{name} did not move, with gradients up to {largest[name]:.3g}"
            return Broken(where, step, cause=STUCK, seen=seen)
    return _counts(run, where)


def _counts(run: Run, where: str) -> Broken | None:
    """Say which count of steps stands still although the scaler has counted some."""
    clean = sum(found == [False] for found in run.verdicts)
    for name, array in run.states[0].items() if clean >= FEWEST else ():
        if (
            not COUNTS.search(name)
            or STATE_OF_OPTIMIZER.search(name)
            or name.startswith(DATA)
            or array.size != 1
        ):
            continue
        if all(same(array, state.get(name)) for state in run.states):
            seen = f"{name} stays {array.item()} in {clean} clean steps"
            return Broken(where, len(run.verdicts) - 1, cause=STILL, seen=seen)
    return None
