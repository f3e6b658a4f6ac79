"""It learns."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampsim.testing.loop.law import SKIPPED, STUCK, UNREACHED, Broken, NotAsked, Verdict, law
from ampsim.testing.loop.runs import Batch, Make, Scaler, advance, begin, parameters

SMALL = 1e-4  # of a parameter: gradients below may rightly be lost when they are added to it


@law(issue="https://github.com/deepspeedai/DeepSpeed/issues/8415", shrinks=False)
def it_learns(make: Make, batches: Sequence[Batch]) -> Verdict:
    """Within the given batches, with clean gradients, every trained parameter moves.

    Trained is what an optimizer in state has. A parameter whose gradients are all zero, or very small beside it, when
    the optimizer steps is not expected to move.
    """
    run = begin(make, Scaler(1.0))
    known = parameters(run.loop)
    names = {id(param): name for name, param in known.items()}
    if not known:
        return NotAsked("no parameters are known: name the model, or the optimizer, in state")
    start = {name: param.detach().clone() for name, param in known.items()}
    largest: dict[str, float] = {}

    def look(optimizer: Optimizer, *_: object) -> None:
        for param in (param for group in optimizer.param_groups for param in group["params"] if id(param) in names):
            name = names[id(param)]
            largest[name] = max(largest.get(name, -1.0), _size(param.grad))

    hook = register_optimizer_step_pre_hook(look)  # of all, as those in state may only wrap what steps
    try:
        advance(run, batches)
    finally:
        hook.remove()
    still = [name for name, param in known.items() if param.numel() and torch.equal(param.detach(), start[name])]
    where, step = f"in {len(batches)} batches", len(batches) - 1
    if len(still) == len(known):
        skipped = sum(run.overflows(index) for index in range(len(batches)))
        seen = f"no parameter moved; {skipped} of {len(batches)} steps were skipped"
        return Broken(where, step, pattern=SKIPPED if skipped else STUCK, seen=seen)
    for name in still:
        if largest.get(name, 0.0) < 0:
            return Broken(
                where, step, pattern=UNREACHED, seen=f"{name} never had a gradient when its optimizer stepped"
            )
        if largest.get(name, 0.0) > SMALL * max(1.0, float(start[name].abs().max())):
            seen = f"{name} did not move, with gradients up to {largest[name]:.3g}"
            return Broken(where, step, pattern=STUCK, seen=seen)
    return None


def _size(grad: Tensor | None) -> float:
    """Return the largest absolute value of a gradient; -1 for none."""
    if grad is None:
        return -1.0
    values = grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
    return float(values.abs().max()) if values.numel() else 0.0
