"""How it is trained: the arms that experiments share, one loop that stops after each backward pass, and its log."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments.training import fp16
from experiments.training.tasks import Batch, Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}  # arms without a scaler; all others are fp16
NAME = re.compile(r"(?:global )?(?:(fp32|bf16|unscaled|dynamic|sum)|(static 2\^|init 2\^|dynamic G=)(-?\d+))")
START = 2.0**16  # torch's first scale
SHORT = 50  # growth interval G of an arm that does not name one; torch's 2000 is longer than most runs here


class Step(NamedTuple):
    """A backward pass that is over; the model's gradients are still multiplied by the scale."""

    number: int  # from 0
    loss: float  # before scaling
    scale: float
    gradient: Tensor  # (elements of the model,) float32, in the order of `model.parameters()`
    found_inf: bool  # whether an element is inf or NaN: the optimizer's step will be skipped
    batch: Batch  # what the loss was computed on


@dataclass(frozen=True)
class Arm:
    """A precision, a loss scale and what the loss is a mean of, by their name in the data.

    | name | |
    |---|---|
    | `fp32`, `bf16` | no scaler |
    | `unscaled`, `static 2^k` | fp16, a scale that never changes |
    | `dynamic G=n` | fp16, dynamic from 2^16; `dynamic` alone has G=50 |
    | `init 2^k` | fp16, dynamic from 2^k, G=50 |
    | `sum` | as `dynamic`, and the loss is the sum over the batch |
    | `global NAME` | as `NAME`, and the loss is the batch's share of the mean over a global batch |

    Raises:
        ValueError: the name is none of these.
    """

    name: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"arm {self.name!r}: expected a name like fp32, unscaled, static 2^4, dynamic G=50")

    @property
    def _parts(self) -> tuple[str, int]:
        """The name without its number, and that; 0 if it has none."""
        match = NAME.fullmatch(self.name)
        return (match[1] or match[2], int(match[3] or 0)) if match else ("", 0)

    @property
    def dtype(self) -> torch.dtype:
        """What autocast casts to."""
        return DTYPES.get(self._parts[0], torch.float16)

    @property
    def fixed(self) -> float | None:
        """The loss scale of an arm that never changes it; None in the dynamic arms."""
        kind, number = self._parts
        if kind == "static 2^":
            return 2.0**number
        return 1.0 if kind in (*DTYPES, "unscaled") else None

    def scaler(self, device: str) -> GradScaler:
        """A new scaler for one run."""
        kind, number = self._parts
        start = 2.0**number if kind == "init 2^" else self.fixed or START
        interval = number if kind == "dynamic G=" else SHORT
        return GradScaler(device, init_scale=start, growth_interval=interval, enabled=kind not in DTYPES)

    def factor(self, count: int, whole: int) -> float:
        """From the mean over a batch of `count` to the loss that is differentiated; `whole` is the global batch."""
        if self.name.startswith("global "):
            return count / whole
        return float(count) if self.name == "sum" else 1.0

    def train(self, task: Task, optimizer: torch.optim.Optimizer, steps: int, *, factor: float = 1.0) -> Iterator[Step]:
        """`train` in this arm's precision, with a new scaler of its own."""
        scaler = self.scaler(next(task.model.parameters()).device.type)
        return train(task, optimizer, scaler, steps, dtype=self.dtype, factor=factor, fixed=self.fixed)


def usual_arms(static_log2: int, growth_intervals: Sequence[int], inits_log2: Sequence[int]) -> list[str]:
    """The arms that tell when fp16 needs loss scaling, and whether it matters how the scale moves."""
    dynamic = [f"dynamic G={n}" for n in growth_intervals]
    inits = [f"init 2^{k}" for k in inits_log2]
    normalised = ["sum", "global fp32", "global unscaled", "global dynamic"]
    return ["fp32", "bf16", "unscaled", f"static 2^{static_log2}", *dynamic, *inits, *normalised]


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
        x, y = task.draw()
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            loss = task.criterion(task.model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss * factor).backward()
        gradient = fp16.flat_gradient(task.model)
        yield Step(number, loss.item(), scaler.get_scale(), gradient, not fp16.all_finite(gradient), (x, y))
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
    """Share of the test set whose largest logit is the right one; in float32 for every arm."""
    x, y = task.test
    hits = (task.model(x).argmax(dim=-1) == y).float().mean().item()
    return fp16.six_digits([hits])[0]


@dataclass
class Log:
    """The columns of one unit that are about its steps; zeros are counted every `count_every` of them."""

    count_every: int
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    found_inf: list[int] = field(default_factory=list)
    counted_steps: list[int] = field(default_factory=list)
    zero: list[float] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """In the order of the steps."""
        self.losses.append(step.loss)
        self.scales.append(step.scale)
        if step.found_inf:
            self.found_inf.append(step.number)
        if step.number % self.count_every == 0:
            (zero,), _, _ = fp16.count_classes(step.gradient, [step.gradient.numel()])
            self.counted_steps.append(step.number)
            self.zero.append(zero / step.gradient.numel())

    def record(self) -> Record:
        """As `data/README.md` has it."""
        return {
            "loss": fp16.six_digits(self.losses),
            "scale_changes": fp16.changes(self.scales),
            "found_inf": self.found_inf,
            "counted_steps": self.counted_steps,
            "zero": fp16.six_digits(self.zero),
        }
