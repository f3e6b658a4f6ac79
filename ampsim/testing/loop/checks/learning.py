"""The check step_changes_parameters."""

from collections.abc import Sequence

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.backend import NOTHING
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.play import Batch, Make, advance, begin

SMALL = 1e-4  # of a parameter: gradients below may rightly be lost when they are added to it
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
    """With finite gradients, every trained parameter changes within the given batches.

    A trained parameter is one that an optimizer in state has. A parameter need not change if its
    gradients are zero or very small compared to it.
    """
    run = begin(make, 1.0)
    start = run.parameters()
    if not start:
        raise NotApplicableError(
            "no parameters found: name the model or the optimizer in state"
        )
    with run.seeding(NOTHING) as seeded:
        advance(run, batches)
    end = run.parameters()
    still = [
        name
        for name, array in start.items()
        if array.size and np.array_equal(array, end[name])
    ]
    where = f"in {len(batches)} batches"
    if len(still) == len(start):
        skipped = sum(run.overflows(index) for index in range(len(batches)))
        seen = f"no parameter changed; {skipped} of {len(batches)} steps were skipped"
        return Broken(where, SKIPPED if skipped else STUCK, seen=seen)
    for name in still:
        size = seeded.largest.get(name, 0.0)
        if size < 0:
            seen = f"{name} never had a gradient when its optimizer stepped"
            return Broken(where, UNREACHED, seen=seen)
        if size > SMALL * max(1.0, float(np.abs(start[name]).max())):
            seen = f"{name} did not change, with gradients up to {size:.3g}"
            return Broken(where, STUCK, seen=seen)
    return None
