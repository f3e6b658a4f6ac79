"""Backward passes that restore gradients, buffers, and RNG state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Loss = Callable[[], Tensor]
"""Callable that returns the scalar loss of one batch, under the autocast used for training."""


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Restore gradients, buffers, and RNG state at the end of the block."""
    grads = [(param, param.grad) for param in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted(
        {param.device.index or 0 for param in model.parameters() if param.is_cuda}
    )
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
    """Run a forward and a backward pass, with the loss multiplied by `scale`; return the loss.

    Raises:
        TypeError: If `loss` does not return a tensor with one element.
    """
    value = loss()
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError(
            f"loss() returned {value!r}: expected a tensor with one element, e.g. a mean"
        )
    (value.float() * scale).backward()  # type: ignore[no-untyped-call]
    return value.detach()


def is_finite(model: nn.Module, loss: Loss, scale: float) -> bool:
    """Return whether the loss and the gradients of one pass are finite; nothing of it stays."""
    with undone(model):
        value = backward(loss, scale)
        grads = [param.grad for param in model.parameters() if param.grad is not None]
        return all(bool(tensor.isfinite().all()) for tensor in [value, *grads])
