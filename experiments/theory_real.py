"""Does theorem T3 predict the loss scale of a real fp16 run, with no fitted parameter?

A small MLP trains on scikit-learn's digits in fp16 under autocast, with SGD, weight decay, and ampsim's
scaler at five growth intervals G. The weight decay keeps the size of the gradients steady; warm-up steps
are excluded. At every step, the gradient is also computed in float32 from the same weights and images.
Its largest element gives the step's *threshold*, the largest power of two at which the gradient still
fits into fp16. T3 takes the empirical distribution of the thresholds and predicts the skip rate and the
distribution of the scale. T3 assumes that thresholds are independent and do not depend on the scale; a
run guarantees neither.

The arm `fp32` trains in float32 and records only thresholds. They predict the fp16 runs without data
from fp16. A forecast uses the first of these thresholds and predicts the fp16 steps that come after.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

import numpy as np
import torch
from rich.table import Table

from ampsim.core import theory
from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from experiments import runner
from experiments.models import mlp
from experiments.training import fp16, loop, series, tasks

OVERFLOWS = 65520.0  # the smallest number that fp16 rounds to inf


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
        **{f"G={interval}": loop.dynamic(interval) for interval in config.growth_intervals},
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
    gradients = torch.autograd.grad(task.criterion(task.model(x), y), list(task.model.parameters()))
    return max(gradient.abs().max().item() for gradient in gradients)


def record(log: Sequence[tuple[float, float, bool, float]], prefix: int) -> Record:
    """Return one unit, from (scale, largest gradient, gradient was finite, loss) of each step that counts."""
    scales, largest, finite, losses = series.table(log)
    foreseen = [scale * size < OVERFLOWS for scale, size in zip(scales, largest, strict=True)]
    levels = [math.floor(math.log2(OVERFLOWS / size)) for size in largest]
    return {
        "ceilings": counted(levels),
        "scales": counted([int(math.log2(scale)) for scale in scales]),
        "skipped": finite.count(False),
        "unforeseen": sum(a != b for a, b in zip(foreseen, finite, strict=True)),
        "ceiling_correlation": round(float(np.corrcoef(levels[:-1], levels[1:])[0, 1]), 4),
        "prefix_ceilings": counted(levels[:prefix]),
        "later_scales": counted([int(math.log2(scale)) for scale in scales[prefix:]]),
        "later_skipped": finite[prefix:].count(False),
        "mean_loss": float(f"{math.fsum(losses) / len(losses):.6g}"),
    }


def counted(levels: Sequence[int]) -> list[list[int]]:
    """Return [[log2, steps], ...], rising."""
    return [[level, count] for level, count in sorted(Counter(levels).items())]


def predict(thresholds: Counter[int], growth_interval: int) -> tuple[float, float]:
    """Return T3's skip rate and mean log2 scale, from counted thresholds."""
    x, form = theory.of_thresholds(thresholds, growth_interval)
    return form.skip_rate, float(x @ form.levels)


def pooled(rows: Sequence[Record], column: str) -> Counter[int]:
    """Return the steps at each level of `thresholds` or `scales`, all seeds together."""
    return sum((Counter(dict(row[column])) for row in rows), Counter())


def table(rows: Sequence[Record]) -> Table:
    """Return what was measured and what T3 says, from the runs' own thresholds and from those of the float32 runs.

    All seeds of an arm are taken together.
    """
    shown = Table(
        "G", "skip rate", "T3", "T3, fp32", "T1", "mean log2 S", "T3", "T3, fp32", "foreseen", "rho(1)", "later",
        "forecast",
    )  # fmt: skip
    arms = {
        name: [row for row in rows if row["arm"] == name]
        for name in dict.fromkeys(row["arm"] for row in rows)
    }
    fp32 = arms.pop("fp32")
    reference, prefix = (pooled(fp32, column) for column in ("ceilings", "prefix_ceilings"))
    for seeds in arms.values():
        interval, scales = seeds[0]["settings"]["growth_interval"], pooled(seeds, "scales")
        steps = scales.total()
        skipped, unforeseen = (
            sum(row[name] for row in seeds) / steps for name in ("skipped", "unforeseen")
        )
        forms = [
            predict(thresholds, interval) for thresholds in (pooled(seeds, "ceilings"), reference)
        ]
        shown.add_row(
            str(interval), f"{skipped:.4f}", *(f"{rate:.4f}" for rate, _ in forms),
            f"{theory.skip_rate(Rule(growth_interval=interval)):.4f}", f"{fmean(scales, scales.values()):.2f}",
            *(f"{level:.2f}" for _, level in forms), f"{1 - unforeseen:.4%}",
            f"{fmean(row['ceiling_correlation'] for row in seeds):.2f}",
            f"{sum(row['later_skipped'] for row in seeds) / pooled(seeds, 'later_scales').total():.4f}",
            f"{predict(prefix, interval)[0]:.4f}",
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("theory_real"))
