"""How it is trained: the arms that experiments share, one loop that stops after each backward pass,
and its log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ampsim.core.json_lines import Record
from ampsim.torch import GradScaler
from experiments.training import fp16, series
from experiments.training.tasks import Batch, Task
from experiments.training.what_fp16_did import flat


class Step(NamedTuple):
    """A backward pass that is over; the model's gradients are still multiplied by the scale."""

    number: int  # from 0
    loss: float  # before scaling
    scale: float
    gradient: (
        Tensor  # (elements of the model,) float32, in the order of `model.parameters()`
    )
    found_inf: (
        bool  # whether an element is inf or NaN: the optimizer's step will be skipped
    )
    batch: Batch  # what the loss was computed on


@dataclass(frozen=True)
class Arm:
    """A precision, a loss scale, and what the loss that is differentiated is a mean of."""

    dtype: Literal["float32", "bfloat16", "float16"] = (
        "float16"  # that autocast casts to; only float16 has a scaler
    )
    init_scale: float = 1.0
    growth_interval: int | None = (
        None  # of a dynamic scale, in clean steps; None: the scale never changes
    )
    loss: Literal["mean", "sum", "share"] = (
        "mean"  # over the batch; share: the batch's part of a global batch's mean
    )

    @property
    def fixed(self) -> float | None:
        """The loss scale of an arm that never changes it; None in the dynamic arms."""
        return self.init_scale if self.growth_interval is None else None

    def scaler(self, device: str) -> GradScaler:
        """Return a new scaler for one run."""
        enabled = self.dtype == "float16"
        return GradScaler(
            device,
            self.init_scale,
            growth_interval=self.growth_interval or SHORT,
            enabled=enabled,
        )

    def factor(self, count: int, whole: int) -> float:
        """Return what turns the mean over a batch of `count` into the loss; `whole` is the size of
        a global batch.
        """
        return {"mean": 1.0, "sum": float(count), "share": count / whole}[self.loss]

    def train(
        self,
        task: Task,
        optimizer: torch.optim.Optimizer,
        steps: int,
        *,
        factor: float = 1.0,
    ) -> Iterator[Step]:
        """Run `train` in this arm's precision, with a new scaler of its own."""
        scaler = self.scaler(next(task.model.parameters()).device.type)
        dtype = getattr(torch, self.dtype)
        return train(
            task, optimizer, scaler, steps, dtype=dtype, factor=factor, fixed=self.fixed
        )


# growth interval G of an arm that does not name one; torch's 2000 is longer than most runs here
SHORT = 50
FP32, BF16, UNSCALED = Arm("float32"), Arm("bfloat16"), Arm()


def static(log2: int) -> Arm:
    """Return fp16 with a loss scale 2^log2 that never changes; a step that overflows is skipped."""
    return Arm(init_scale=2.0**log2)


def dynamic(growth_interval: int = SHORT, init_log2: int = 16) -> Arm:
    """Return fp16 with a dynamic loss scale; torch starts at 2^16."""
    return Arm(init_scale=2.0**init_log2, growth_interval=growth_interval)


def usual_arms(
    static_log2: int, growth_intervals: Sequence[int], inits_log2: Sequence[int]
) -> dict[str, Arm]:
    """Return the arms that tell when fp16 needs loss scaling, and whether it matters how the scale
    moves, by name.
    """
    shared = {"fp32": FP32, "unscaled": UNSCALED, "dynamic": dynamic()}
    return {
        "fp32": FP32,
        "bf16": BF16,
        "unscaled": UNSCALED,
        f"static 2^{static_log2}": static(static_log2),
        **{f"dynamic G={interval}": dynamic(interval) for interval in growth_intervals},
        **{f"init 2^{log2}": dynamic(init_log2=log2) for log2 in inits_log2},
        "sum": replace(dynamic(), loss="sum"),
        **{
            f"global {name}": replace(arm, loss="share") for name, arm in shared.items()
        },
    }


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
        factor: multiplies the loss that is differentiated: from the mean to a sum, or to a share of
            a larger batch.
        fixed: put back as the scale after every step; an overflow is then skipped, but never backed
            off from.
    """
    parameters = list(
        task.model.parameters()
    )  # once: to walk the modules takes longer than to join what they hold
    device = parameters[0].device.type
    for number in range(steps):
        x, y = task.draw()
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            loss = task.criterion(task.model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss * factor).backward()
        gradient = flat(parameter.grad for parameter in parameters)
        yield Step(
            number,
            loss.item(),
            scaler.get_scale(),
            gradient,
            not fp16.all_finite(gradient),
            (x, y),
        )
        scaler.step(optimizer)
        scaler.update(fixed)


def cool(optimizer: torch.optim.Optimizer, lr: float, step: int, steps: int) -> None:
    """Set the learning rate of `step`: `lr`, and in the last third of `steps` down to 0 in a line.

    Where a run ends is then a matter of the arm and of the seed, and not of its last batches.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * min(1.0, 3 * (1 - step / steps))


@torch.no_grad()
def accuracy(task: Task) -> float:
    """Return the share of the test set whose largest logit is the right one; in float32 for every
    arm.
    """
    x, y = task.test
    hits = (task.model(x).argmax(dim=-1) == y).float().mean().item()
    return series.six_digits([hits])[0]


@dataclass
class Log:
    """The columns of one unit that are about its steps."""

    count_every: int | None = (
        None  # steps between two counts of zeros; None: they are not counted
    )
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    found_inf: list[int] = field(default_factory=list)
    counted_steps: list[int] = field(default_factory=list)
    zero: list[float] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Note the next step."""
        self.losses.append(step.loss)
        self.scales.append(step.scale)
        if step.found_inf:
            self.found_inf.append(step.number)
        if self.count_every and step.number % self.count_every == 0:
            (zero,), _, _ = fp16.count_classes(step.gradient, [step.gradient.numel()])
            self.counted_steps.append(step.number)
            self.zero.append(zero / step.gradient.numel())

    def record(self) -> Record:
        """Return the columns as `data/README.md` has them."""
        counted = {
            "counted_steps": self.counted_steps,
            "zero": series.six_digits(self.zero),
        }
        return {
            "loss": series.six_digits(self.losses),
            "scale_changes": series.changes(self.scales),
            "found_inf": self.found_inf,
            **(counted if self.count_every else {}),
        }
