"""How many steps may overflow at any loss scale before training stops?

A deep sigmoid network learns digits in native fp16. At x times T8's critical rate, a batch is
*bad*: one pixel of one image is 1e6 instead of at most 1. fp16 cannot represent this number, so the
first layer's gradient is NaN at every scale and the step is skipped. The loss stays finite, and in
float32 the effect would be small. Above the critical rate, T8 predicts that the scale drifts to 0
and training stops when the gradients underflow. Two mitigations run at twice the critical rate:
`floor`, a minimum scale, and `G=n`, a shorter growth interval.

Device: cpu, or cuda with `--device cuda`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ampsim.core import theory
from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import fp16, loop, series, tasks

PIXEL, BAD = 27, 1e6  # in the middle of an image, whose pixels are 0 to 1
EVERY = 20  # steps in one mean of the loss, and from one count of zeros to the next


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 800  # optimizer steps per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights, batches and bad steps
    growth_interval: int = 10  # short, so that T8's walk takes many steps within a run
    ratios: tuple[float, ...] = (
        0.25,
        0.5,
        0.8,
        1.25,
        2.0,
    )  # rates of bad steps, critical rate = 1
    floor_log2: int = 8  # a cure: the least scale
    short_interval: int = 4  # another: a growth interval whose critical rate is higher
    depth: int = 4  # linear layers of the sigmoid network
    width: int = 32
    batch: int = 32  # images per step
    lr: float = 3e-3  # of Adam


SMOKE = Config(steps=40, seeds=(0,), ratios=(2.0,))


@dataclass(frozen=True)
class Storm:
    """A rate of bad batches, and the rule that meets them."""

    ratio: float  # of the rate over the critical one of the config's growth interval
    growth_interval: int
    floor_log2: int | None = None  # of the least scale


def arms(config: Config) -> dict[str, Storm]:
    interval, short, floor = (
        config.growth_interval,
        config.short_interval,
        config.floor_log2,
    )
    storms = {f"storm {ratio:g}": Storm(ratio, interval) for ratio in config.ratios}
    return storms | {
        f"storm 2 floor=2^{floor}": Storm(2.0, interval, floor),
        f"storm 2 G={short}": Storm(2.0, short),
    }


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(
    config: Config, arm: Storm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train with bad batches at random; the columns are explained in `data/README.md`."""
    rate = arm.ratio * theory.critical_bad_rate(
        Rule(growth_interval=config.growth_interval)
    )
    task = tasks.sigmoid(
        fp16.prepare(seed), device, config.batch, depth=config.depth, width=config.width
    )
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=config.lr, eps=1e-15, fused=True
    )  # hides nothing flushed
    bad = bad_steps(config.steps, rate, seed)
    floor = None if arm.floor_log2 is None else 2.0**arm.floor_log2
    scaler = GradScaler(device, growth_interval=arm.growth_interval, min_scale=floor)
    log = loop.Log(EVERY)
    for step in loop.train(corrupted(task, bad), optimizer, scaler, config.steps):
        log.add(step)
        tick(step.number + 1)
    return {
        "rate": rate,
        "interval": arm.growth_interval,
        "every": EVERY,
        "mean_losses": block_means(log.losses),
        "scale_changes": series.changes([*log.scales, scaler.get_scale()]),
        "found_inf": log.found_inf,
        "bad": series.flagged(bad),
        "zero": series.six_digits(log.zero),
        "test_loss": task.test_loss(),
    }


def bad_steps(steps: int, rate: float, seed: int) -> list[bool]:
    """Draw independent steps; those of a lower rate are among those of a higher one."""
    chances = torch.rand(
        steps, generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64
    )
    flags: list[bool] = (chances < rate).tolist()
    return flags


def corrupted(task: tasks.Task, bad: Sequence[bool]) -> tasks.Task:
    """Return the task, with a pixel that fp16 cannot hold in the first image of each bad batch."""
    flags = iter(bad)

    def draw() -> tasks.Batch:
        x, y = task.draw()
        if next(flags):
            x = x.clone()
            x[0, PIXEL] = BAD
        return x, y

    return dataclasses.replace(task, draw=draw)


def block_means(values: list[float]) -> list[float]:
    """Return means of `EVERY` steps; a last, shorter block counts as one."""
    return series.six_digits(
        [float(np.mean(values[i : i + EVERY])) for i in range(0, len(values), EVERY)]
    )


if __name__ == "__main__":
    raise SystemExit(runner.main("overflow_storm"))
