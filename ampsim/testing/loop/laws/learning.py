"""It learns."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ampsim.testing.loop.law import SKIPPED, STUCK, UNREACHED, Broken, NotAsked, Verdict, law
from ampsim.testing.loop.runs import Batch, Make, Scaler, advance, begin, hooked, parameters

SCALE = 2.0**8
SMALL = 1e-4  # of a parameter: gradients below may rightly be lost when they are added to it


@law(issue="https://github.com/deepspeedai/DeepSpeed/issues/8415", shrinks=False)
def it_learns(make: Make, batches: Sequence[Batch]) -> Verdict:
    """Within the given batches, with clean gradients, every trained parameter moves.

    A parameter whose gradients are all zero, or very small beside it, is not expected to.
    """
    run = begin(make, Scaler(SCALE))
    trained = parameters(run.loop)
    if not trained:
        return NotAsked("no parameters are known: name the model, or the optimizer, in state")
    start = {name: param.detach().clone() for name, param in trained.items()}
    largest: dict[str, float] = {}

    def look(name: str, grad: Tensor) -> None:
        size = float(grad.detach().abs().max()) if grad.numel() else 0.0
        largest[name] = max(largest.get(name, 0.0), size / SCALE)

    with hooked(run.loop, look):
        advance(run, batches)
    still = [name for name, param in trained.items() if param.numel() and torch.equal(param.detach(), start[name])]
    step = len(batches) - 1
    if len(still) == len(trained):
        skipped = sum(run.overflows(index) for index in range(len(batches)))
        seen = f"no parameter moved; {skipped} of {len(batches)} steps were skipped"
        return Broken(_within(batches), step, pattern=SKIPPED if skipped else STUCK, seen=seen)
    for name in still if largest else []:
        if name not in largest:
            return Broken(_within(batches), step, pattern=UNREACHED, seen=f"{name} never had a gradient")
        if largest[name] > SMALL * max(1.0, float(start[name].abs().max())):
            seen = f"{name} did not move, with gradients up to {largest[name]:.3g}"
            return Broken(_within(batches), step, pattern=STUCK, seen=seen)
    return None


def _within(batches: Sequence[Batch]) -> str:
    return f"in {len(batches)} batches"
