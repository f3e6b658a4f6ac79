"""How large a loss scale a step could have borne: found by trying.

The gradients of the parameters do not tell. Those of the activations may overflow first, inside the
backward pass, where a gradient of many images is not yet averaged.
"""

import math
from collections.abc import Callable

import torch

from experiments.training import fp16
from experiments.training.tasks import Batch, Task

LOWEST, HIGHEST = -40, 60  # log2 of the scales that are tried; fp16 spans 40 binades


def threshold(task: Task, batch: Batch, near: float, halvings: int = 0) -> float:
    """Return log2 of the largest scale at which no gradient of a batch overflows, with the weights
    as they are.

    Backward passes in fp16, one a scale that is tried; they change no gradient that an optimizer
    sees.

    Args:
        task: what is trained.
        batch: of the step in question.
        near: log2 of the scale to start from, or an earlier threshold.
        halvings: 0 finds the largest power of two, exactly; each more halves what is left of that
            bit, and the middle of the rest is returned: with n of them the error is at most 2^-(n +
            1) bits.

    Returns:
        -inf if the step overflows at every scale, inf if at none.
    """
    x, y = batch
    parameters = list(task.model.parameters())
    with fp16.autocast(x.device.type, fp16=True):
        loss = task.criterion(task.model(x), y)

    def fits(bits: float) -> bool:
        gradients = torch.autograd.grad(loss * 2.0**bits, parameters, retain_graph=True)
        return all(fp16.all_finite(gradient) for gradient in gradients)

    return search(fits, math.floor(min(max(near, LOWEST), HIGHEST)), halvings)


def search(fits: Callable[[float], bool], start: int, halvings: int) -> float:
    """Return where `fits`, true up to some number and false above it, ends; see `threshold`."""
    if fits(start):
        low = next(
            (bits for bits in range(start, HIGHEST) if not fits(bits + 1)), math.inf
        )
    else:
        low = next(
            (bits for bits in range(start - 1, LOWEST, -1) if fits(bits)), -math.inf
        )
    if not halvings or math.isinf(low):
        return low
    width = 1.0
    for _ in range(halvings):
        width /= 2
        low += width * fits(low + width)
    return low + width / 2
