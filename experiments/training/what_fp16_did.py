"""What fp16 did to a gradient: backward passes at other loss scales, and what they lost of the true
gradient.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.training import fp16
from experiments.training.tasks import Batch, Task


class Loss(NamedTuple):
    """The loss of a gradient beside the true one, in float32."""

    # share of the elements, of those that are not zero in the truth, that became zero
    flushed: float
    overflowed: float  # share of them that is not finite
    # length of the difference over that of the truth; inf where an element is not finite
    error: float


def backward_passes(
    task: Task, batch: Batch, scales: Iterable[float]
) -> Iterator[Tensor]:
    """Yield the gradient of one and the same fp16 forward pass, computed in fp16 at each loss
    scale, and scaled.

    The gradients of the model stay as they are.
    """
    x, y = batch
    parameters = list(task.model.parameters())
    with fp16.autocast(x.device.type, fp16=True):
        loss = task.criterion(task.model(x), y)
    for scale in scales:
        yield flat(torch.autograd.grad(loss * scale, parameters, retain_graph=True))


def flat(gradients: Iterable[Tensor | None]) -> Tensor:
    """Return all gradients in one vector."""
    return torch.cat(
        [gradient.flatten() for gradient in gradients if gradient is not None]
    )


def compare(truth: Tensor, scaled: Tensor, scale: float) -> Loss:
    """Return what a gradient has lost.

    Args:
        truth: (elements,) float32.
        scaled: (elements,) what stands for it, multiplied by `scale`.
        scale: the loss scale.
    """
    there = truth != 0
    elements = max(int(there.sum()), 1)
    wrong = ~scaled.isfinite()
    flushed, overflowed = (
        int((there & which).sum()) / elements for which in (scaled == 0, wrong)
    )
    if wrong.any():
        return Loss(flushed, overflowed, float("inf"))
    error = torch.linalg.vector_norm(
        scaled.float() / scale - truth
    ) / torch.linalg.vector_norm(truth)
    return Loss(flushed, overflowed, error.item())
