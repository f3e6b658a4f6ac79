"""Does theorem T3 predict the loss scale of a real fp16 run, with no fitted parameter?

A small MLP trains on scikit-learn's digits in fp16 under autocast, with SGD, weight decay, and
ampsim's scaler at five growth intervals G. The weight decay keeps the size of the gradients steady;
warm-up steps are excluded. At every step, the gradient is also computed in float32 from the same
weights and images. Its largest element gives the step's *threshold*, the largest power of two at
which the gradient still fits into fp16. T3 takes the empirical distribution of the thresholds and
predicts the skip rate and the distribution of the scale. T3 assumes that thresholds are independent
and do not depend on the scale; a run guarantees neither. The thresholds are recorded in order, so
that a replay shows what their order does.

The arm `fp32` trains in float32 and records only thresholds. They predict the fp16 runs without
data from fp16. A forecast uses the first of these thresholds and predicts the fp16 steps that come
after.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

import torch

from ampsim.core.json_lines import Record
from experiments import runner
from experiments.models import mlp
from experiments.training import fp16, loop, series, tasks

OVERFLOWS = 65520.0  # the smallest number that fp16 rounds to inf


RECOMPUTED = ("fp32", "G=5", "G=100")


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 2000  # optimizer steps per unit
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of weights and batches
    warmup: Annotated[int, runner.BEFORE_THE_END] = (
        600  # of them left out, while the gradients' size settles
    )
    batch: int = 32  # images per step
    width: int = 64  # units a hidden layer, of two
    lr: float = 0.05  # of SGD
    weight_decay: Annotated[float, runner.FROM_0] = 0.01
    growth_intervals: tuple[int, ...] = (5, 10, 20, 50, 100)  # an arm each
    prefix: Annotated[int, runner.BEFORE_THE_END] = (
        300  # steps after the warm-up that a forecast may see
    )


SMOKE = Config(steps=60, seeds=(0,), warmup=20, growth_intervals=(5,), prefix=20)


def arms(config: Config) -> dict[str, loop.Arm]:
    return {
        "fp32": loop.FP32,
        **{
            f"G={interval}": loop.dynamic(interval)
            for interval in config.growth_intervals
        },
    }


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(
    config: Config, arm: loop.Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one arm; the columns are explained in `data/README.md`."""
    generator = fp16.prepare(seed)
    task = tasks.digits(mlp.make(config.width), generator, device, config.batch)
    optimizer = torch.optim.SGD(
        task.model.parameters(), lr=config.lr, weight_decay=config.weight_decay
    )
    log = []
    for step in arm.train(task, optimizer, config.steps):
        if step.number >= config.warmup:
            largest = (
                step.gradient.abs().max().item()
                if arm == loop.FP32
                else largest_gradient(task, step.batch)
            )
            log.append((step.scale, largest, not step.found_inf, step.loss))
        tick(step.number + 1)
    return record(log, config.prefix)


def largest_gradient(task: tasks.Task, batch: tasks.Batch) -> float:
    """Return the largest magnitude in the gradient of a batch's true loss, in float32."""
    x, y = batch
    gradients = torch.autograd.grad(
        task.criterion(task.model(x), y), list(task.model.parameters())
    )
    return max(gradient.abs().max().item() for gradient in gradients)


def record(log: Sequence[tuple[float, float, bool, float]], prefix: int) -> Record:
    """Return one unit, from (scale, largest gradient, gradient was finite, loss) of each step that
    counts.
    """
    scales, largest, finite, losses = series.table(log)
    foreseen = [
        scale * size < OVERFLOWS for scale, size in zip(scales, largest, strict=True)
    ]
    levels = [math.floor(math.log2(OVERFLOWS / size)) for size in largest]
    return {
        "thresholds": [[level, len(list(steps))] for level, steps in groupby(levels)],
        "scales": counted([int(math.log2(scale)) for scale in scales]),
        "skipped": finite.count(False),
        "unforeseen": sum(a != b for a, b in zip(foreseen, finite, strict=True)),
        "later_skipped": finite[prefix:].count(False),
        "mean_loss": float(f"{math.fsum(losses) / len(losses):.6g}"),
    }


def counted(levels: Sequence[int]) -> list[list[int]]:
    """Return [[log2, steps], ...], rising."""
    return [[level, count] for level, count in sorted(Counter(levels).items())]


if __name__ == "__main__":
    raise SystemExit(runner.main("theory_real"))
