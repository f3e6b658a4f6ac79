"""Faults in the gradient of a torch loss whose backward pass is not the loop's own."""

from typing import Any

import torch
from torch import Tensor

from ampsim.testing.loop.faults import FAULTS


class _Fallible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss * float(FAULTS.loss())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * float(FAULTS.factor())


def fallible(loss: Tensor) -> Tensor:
    """Return the loss, whose gradient the kit can make inf."""
    return _Fallible.apply(loss)  # type: ignore[no-untyped-call, no-any-return]
