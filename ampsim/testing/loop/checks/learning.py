"""The check step_changes_parameters."""

import re
from collections.abc import Sequence

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.checks.excused import DATA
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin
from ampsim.testing.loop.state import same

FEWEST = 3  # finite steps, of which a count must have counted one
COUNTS = re.compile(r"(^|\.)(last_epoch|_step_count|n_averaged|(global_?)?steps?|num_updates)$")
STATE_OF_OPTIMIZER = re.compile(r"\.(state|param_groups)\.")
SMALL = 1e-4  # of a parameter: gradients below may rightly be lost when they are added to it
STILL = (
    "state names it, but the loop never calls it: step it after each optimizer step. If it changes once per epoch, "
    "name it `data` in state, or pass batches of more than one epoch"
)
SKIPPED = "every step is skipped: check the loss for inf and NaN at this scale"
UNREACHED = (
    "the parameter is not in the graph of the loss, or is detached from it. If it should not be trained, remove it "
    "from the optimizer, or call requires_grad_(False)"
)
STUCK = (
    "no optimizer steps with its gradients, or the change underflows in the parameter's dtype: keep float32 "
    "parameters"
)


@check(issue="https://github.com/deepspeedai/DeepSpeed/issues/8415")
def step_changes_parameters(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """With finite gradients, every trained parameter and every step count changes within the given batches.

    A trained parameter is one that an optimizer in state has. A parameter need not change if its gradients are zero or
    very small compared to it. A step count is recognized by its name: that of a schedule, of an average, or one that
    ends in ``step`` or ``steps``.
    """
    run = begin(make, 1.0)
    start = run.parameters()
    if not start:
        raise NotApplicableError("no parameters found: name the model or the optimizer in state")
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
        seen = f"no parameter changed; {skipped} of {len(batches)} steps were skipped"
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
            seen = f"{name} did not change, with gradients up to {largest[name]:.3g}"
            return Broken(where, step, cause=STUCK, seen=seen)
    return _counts(run, where)


def _counts(run: Run, where: str) -> Broken | None:
    """Return the first step count that does not change although the scaler counts steps."""
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
            seen = f"{name} stays {array.item()} over {clean} finite steps"
            return Broken(where, len(run.verdicts) - 1, cause=STILL, seen=seen)
    return None
