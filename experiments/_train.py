"""How it is trained: the arms that experiments share, and one loop that stops after each backward pass."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ampsim.torch import GradScaler
from experiments import _fp16
from experiments._tasks import Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}  # arms without a scaler; all others are fp16


class Step(NamedTuple):
    """A backward pass that is over; the model's gradients are still multiplied by the scale."""

    number: int  # from 0
    loss: float  # before scaling
    scale: float
    gradient: Tensor  # (elements of the model,) float32, in the order of `model.parameters()`
    found_inf: bool  # whether an element is inf or NaN: the optimizer's step will be skipped


@dataclass(frozen=True)
class Arm:
    """A precision and a loss scale, by their names in the data.

    `fp32`, `bf16`, and in fp16 `unscaled`, `static 2^k`, `dynamic G=n` from 2^16, `init 2^k` with G=50.
    """

    name: str

    @property
    def dtype(self) -> torch.dtype:
        """What autocast casts to."""
        return DTYPES.get(self.name, torch.float16)

    @property
    def fixed(self) -> float | None:
        """The loss scale of an arm that never changes it; None in the dynamic arms."""
        if self.name.startswith("static 2^"):
            return 2.0 ** int(self.name.removeprefix("static 2^"))
        return 1.0 if self.name in (*DTYPES, "unscaled") else None

    def scaler(self, device: str) -> GradScaler:
        """A new scaler for one run."""
        if self.name.startswith("dynamic G="):
            return GradScaler(device, growth_interval=int(self.name.removeprefix("dynamic G=")))
        if self.name.startswith("init 2^"):
            return GradScaler(device, init_scale=2.0 ** int(self.name.removeprefix("init 2^")), growth_interval=50)
        return GradScaler(device, init_scale=self.fixed or 1.0, enabled=self.name not in DTYPES)


def train(
    task: Task,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    steps: int,
    *,
    dtype: torch.dtype = torch.float16,
    factor: float = 1.0,
    fixed: float | None = None,
) -> Iterator[Step]:
    """Train under autocast; yields each step between its backward pass and the optimizer.

    A step whose gradient is not finite is skipped.

    Args:
        task: what is trained.
        optimizer: of the task's parameters.
        scaler: asked for its scale, and told what happened.
        steps: how many.
        dtype: of autocast; float32 switches it off.
        factor: multiplies the loss that is differentiated: from the mean to a sum, or to a share of a larger batch.
        fixed: put back as the scale after every step; an overflow is then skipped, but never backed off from.
    """
    device = next(task.model.parameters()).device.type
    for number in range(steps):
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            loss = task.loss()
        optimizer.zero_grad()
        scaler.scale(loss * factor).backward()
        gradient = _fp16.flat_gradient(task.model)
        yield Step(number, loss.item(), scaler.get_scale(), gradient, not _fp16.all_finite(gradient))
        scaler.step(optimizer)
        scaler.update(fixed)
