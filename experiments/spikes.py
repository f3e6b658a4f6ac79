"""What does a spike of the gradient cost: how many steps are skipped, and how long until the scale is back?

A deep sigmoid network learns digits in native fp16. Now and then the loss is multiplied so that the ceiling falls to h
bits below the scale for d steps: T4's recovery. Arms: `spike capped`, from a scale that `max_scale` holds below the
ceiling, as T4 assumes, and `spike free`, from one that it does not.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

import torch
from torch import Tensor

from ampsim.core import theory
from ampsim.core.formats import FP16
from ampsim.core.machine import Rule
from ampsim.probe import Histogram
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import fp16, tasks

MAX_NORM = 1.0  # that gradients are clipped to; they are too large while a spike lasts
CAP = 2.0**12  # the capped scale, some 7 bits below the ceiling


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 518  # optimizer steps per unit; enough that the last spike may take twice T4's time
    growth_interval: int = 10
    depth: int = 4  # linear layers of the sigmoid network
    width: int = 32
    batch: int = 32  # images per step
    lr: float = 3e-3  # of Adam
    settle: Annotated[int, runner.BEFORE_THE_END] = 60  # steps before the first spike
    spikes: tuple[tuple[int, int], ...] = ((2, 4), (5, 7), (8, 10), (10, 4))  # bits below the scale, steps


SMOKE = Config(steps=57, seeds=(0,), settle=3, spikes=((2, 3),))


@dataclass(frozen=True)
class Start:
    """The loss scale that spikes meet."""

    init_scale: float
    max_scale: float | None


def arms(config: Config) -> dict[str, Start]:
    return {"spike capped": Start(CAP, CAP), "spike free": Start(2.0**16, None)}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(config: Config, arm: Start, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Run spikes far enough apart for the scale to come back; the columns are explained in `data/README.md`."""
    rule = Rule(growth_interval=config.growth_interval)
    task = tasks.sigmoid(fp16.prepare(seed), device, config.batch, depth=config.depth, width=config.width)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=config.lr, eps=1e-15, fused=True)
    scaler = GradScaler(device, arm.init_scale, growth_interval=rule.growth_interval, max_scale=arm.max_scale)
    spans = dict(zip(starts(config), config.spikes, strict=False))
    gain, left, scales, found_inf = 1.0, 0, [], []
    for step in range(config.steps):
        x, y = task.draw()
        scales.append(scaler.get_scale())
        if step in spans:
            height, left = spans[step]
            gain = 2.0**height * ceiling(task, x, y) / scales[-1]
        found_inf.append(clipped_step(task, x, y, optimizer, scaler, gain if left > 0 else 1.0))
        left -= 1
        tick(step + 1)
    return {"spikes": [met(rule, scales, found_inf, start, *span) for start, span in spans.items()]}


def starts(config: Config) -> list[int]:
    """Return the first step of each spike, and the step by which the scale should be back from the last."""
    rule = Rule(growth_interval=config.growth_interval)
    gaps = (2 * theory.recovery(rule, height, lasts).steps + 10 for height, lasts in config.spikes)
    return list(accumulate(gaps, initial=config.settle))


def met(rule: Rule, scales: Sequence[float], found_inf: Sequence[bool], start: int, height: int, lasts: int) -> Record:
    """Return one spike beside T4: skips while it lasted, steps until the scale was back (None: never)."""
    t4 = theory.recovery(rule, height, lasts)
    back = next((step for step in range(start + 1, len(scales)) if scales[step] >= scales[start]), None)
    return {
        "height": height,
        "lasts": lasts,
        "log2_scale": math.log2(scales[start]),
        "skips": sum(found_inf[start : start + lasts]),
        "skips_t4": t4.skips,
        "recovery": None if back is None else back - start,
        "recovery_t4": t4.steps,
    }


def ceiling(task: tasks.Task, x: Tensor, y: Tensor) -> float:
    """Return the largest scale at which this batch's float32 gradient fits into fp16."""
    gradients = torch.autograd.grad(task.criterion(task.model(x), y), list(task.model.parameters()))
    return Histogram.of(torch.cat([gradient.flatten() for gradient in gradients])).ceiling(FP16)


def clipped_step(
    task: tasks.Task, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, scaler: GradScaler, gain: float
) -> bool:
    """Make one step on `gain` times the loss; returns whether it was skipped."""
    with fp16.autocast(x.device.type, fp16=True):
        loss = task.criterion(task.model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss * gain).backward()
    overflowed = not fp16.all_finite(fp16.flat_gradient(task.model))
    scaler.unscale_and_clip_(optimizer, max_norm=MAX_NORM)
    scaler.step(optimizer)
    scaler.update()
    return overflowed


if __name__ == "__main__":
    raise SystemExit(runner.main("spikes"))
