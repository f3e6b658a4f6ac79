"""A backward pass that leaves nothing behind: gradients, buffers and random numbers are as they were before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Loss = Callable[[], Tensor]
"""Computes the loss of one batch, with whatever autocast the training loop has."""


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Undo what a forward and a backward pass in this block do to a model and to the random numbers."""
    grads = [(param, param.grad) for param in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({param.device.index or 0 for param in model.parameters() if param.is_cuda})
    with torch.random.fork_rng(devices):
        try:
            for param, _ in grads:
                param.grad = None
            yield
        finally:
            for param, grad in grads:
                param.grad = grad
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def backward(loss: Loss, scale: float) -> Tensor:
    """Compute the loss and the gradients of `scale` times it; return the loss, which has one element.

    Raises:
        TypeError: `loss` returned something else.
    """
    value = loss()
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError(
            f"loss() returned {value!r}: expected a tensor with one element, such as a mean"
        )
    (value.float() * scale).backward()  # type: ignore[no-untyped-call]
    return value.detach()
