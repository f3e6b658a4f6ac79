"""How many steps may overflow whatever the scale is, what does a spike cost, and which signal foretells a crash?

Three kinds of arms, all real runs in native fp16:

- `storm x`: a deep sigmoid network; at x times T8's critical rate a batch is *bad*: one pixel of one image is 1e6
  instead of at most 1. fp16 has no such number, so the first layer's gradient is NaN at every scale and the step is
  skipped, while the loss stays finite and float32 would hardly notice. Above the critical rate the scale should
  drift to 0, as T8 says, and training stop where the gradients are flushed. Two cures at twice the critical rate:
  `floor`, a least scale, and `G=n`, a shorter growth interval.
- `spike capped`, `spike free`: the loss is multiplied so that the ceiling falls to h bits below the scale for d steps:
  T4's recovery, from a scale that `max_scale` holds below the ceiling, as T4 assumes, and from one that it does not.
- `crash lr=x`: the residual network of `scale_crash`, whose scale halves for ever at the higher rates. Which of the
  signals in `_alarms` is raised before, how long before, and how often in runs that do not crash?

Takes about a minute on one CPU core. Device: cpu, or cuda with `--device cuda`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

from ampsim.core import theory
from ampsim.core.formats import FP16
from ampsim.core.machine import Rule
from ampsim.probe import Histogram
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.models.residual_mlp import ResidualMLP
from experiments.models.sigmoid_mlp import SigmoidMLP
from experiments.scale_crash import crash_step
from experiments.training import crash_signals, digits_data, fp16, loop, tasks

PIXEL, BAD = 27, 1e6  # in the middle of an image, whose pixels are 0 to 1
EVERY = 20  # steps in one mean of the loss, and from one count of zeros to the next
MAX_NORM = 1.0  # that gradients are clipped to in the spike arms, whose gradients are too large while they last
CAP = 2.0**12  # the capped scale, some 7 bits below the ceiling


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 800  # optimizer steps of a storm
    growth_interval: int = 10  # of storms and spikes; short, so that T8's walk takes many steps within a run
    ratios: tuple[float, ...] = (0.25, 0.5, 0.8, 1.25, 2.0)  # rates of bad steps, critical rate = 1
    floor_log2: int = 8  # a cure: the least scale
    short_interval: int = 4  # another: a growth interval whose critical rate is higher
    depth: int = 4  # linear layers of the sigmoid network
    width: int = 32
    batch: int = 32  # images a step
    lr: float = 3e-3  # of Adam
    settle: int = 60  # steps before the first spike
    spikes: tuple[tuple[int, int], ...] = ((2, 4), (5, 7), (8, 10), (10, 4))  # bits below the scale, steps
    crash_lrs: tuple[float, ...] = (0.02, 0.035, 0.05)  # of Adam, an arm each
    crash_steps: int = 210  # at most
    crash_interval: int = 50  # growth interval
    patience: int = 12  # skips in a row with a forward pass that overflows, after which a crash run is over


SMOKE = Config(steps=40, seeds=(0,), ratios=(2.0,), settle=3, spikes=((2, 3),), crash_lrs=(0.05,), crash_steps=6)


def arms(config: Config) -> list[str]:
    storms = [f"storm {ratio:g}" for ratio in config.ratios]
    cures = [f"storm 2 floor=2^{config.floor_log2}", f"storm 2 G={config.short_interval}"]
    return [*storms, *cures, "spike capped", "spike free", *(f"crash lr={lr}" for lr in config.crash_lrs)]


def inputs() -> dict[str, str]:
    return {"digits": digits_data.sha256()}


def run(config: Config, unit: runner.Unit, device: str, tick: Callable[[int], None]) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    kinds = {"storm": storm, "spike": spike, "crash": crash}
    kind, _, name = unit.arm.partition(" ")
    return kinds[kind](config, name, unit.seed, device, tick)


def sigmoid(config: Config, seed: int, device: str) -> tuple[tasks.Task, torch.optim.Optimizer]:
    """What storms and spikes train. Adam's eps hides no flushed gradient."""
    batches = fp16.prepare(seed)
    model = SigmoidMLP(digits_data.PIXELS, config.width, config.depth, digits_data.CLASSES)
    task = tasks.digits(model, batches, device, config.batch)
    return task, torch.optim.Adam(task.model.parameters(), lr=config.lr, eps=1e-15, fused=True)


# ------------------------------------------------------------------------------------------------- storms


def storm(config: Config, name: str, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Bad batches at random."""
    ratio, _, cure = name.partition(" ")
    rate = float(ratio) * theory.critical_bad_rate(Rule(growth_interval=config.growth_interval))
    interval = int(cure.removeprefix("G=")) if cure.startswith("G=") else config.growth_interval
    floor = 2.0 ** int(cure.removeprefix("floor=2^")) if cure.startswith("floor") else None
    task, optimizer = sigmoid(config, seed, device)
    bad = bad_steps(config.steps, rate, seed)
    scaler = GradScaler(device, growth_interval=interval, min_scale=floor)
    log, zeros = [], []
    for step in loop.train(corrupted(task, bad), optimizer, scaler, config.steps):
        log.append((step.loss, step.scale, step.found_inf))
        if step.number % EVERY == 0:
            zeros.append(int((step.gradient == 0).sum()) / step.gradient.numel())
        tick(step.number + 1)
    losses, scales, found_inf = fp16.table(log)
    return {
        "rate": rate,
        "interval": interval,
        "every": EVERY,
        "mean_losses": block_means(losses),
        "scale_changes": fp16.changes([*scales, scaler.get_scale()]),
        "found_inf": flagged(found_inf),
        "bad": flagged(bad),
        "zero": fp16.six_digits(zeros),
        "test_loss": task.test_loss(),
    }


def bad_steps(steps: int, rate: float, seed: int) -> list[bool]:
    """Independent; those of a lower rate are among those of a higher one, so that arms differ in the rate only."""
    chances = torch.rand(steps, generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64)
    flags: list[bool] = (chances < rate).tolist()
    return flags


def corrupted(task: tasks.Task, bad: list[bool]) -> tasks.Task:
    """The task, with a pixel that fp16 cannot hold in the first image of each bad batch."""
    flags = iter(bad)

    def draw() -> tasks.Batch:
        x, y = task.draw()
        if next(flags):
            x = x.clone()
            x[0, PIXEL] = BAD
        return x, y

    return dataclasses.replace(task, draw=draw)


def block_means(values: list[float]) -> list[float]:
    """Means of `EVERY` steps; a last, shorter block counts as one."""
    return fp16.six_digits([float(np.mean(values[i : i + EVERY])) for i in range(0, len(values), EVERY)])


def flagged(flags: list[bool]) -> list[int]:
    return [step for step, flag in enumerate(flags) if flag]


# ------------------------------------------------------------------------------------------------- spikes


def spike(config: Config, name: str, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Spikes far enough apart that the scale may take twice T4's time to come back."""
    rule = Rule(growth_interval=config.growth_interval)
    task, optimizer = sigmoid(config, seed, device)
    capped = name == "capped"
    scaler = GradScaler(
        device, CAP if capped else 2.0**16, growth_interval=rule.growth_interval, max_scale=CAP if capped else None
    )
    gaps = (2 * theory.recovery(rule, height, lasts).steps + 10 for height, lasts in config.spikes)
    starts = list(accumulate(gaps, initial=config.settle))
    spans = dict(zip(starts, config.spikes, strict=False))
    gain, left, scales, found_inf = 1.0, 0, [], []
    for step in range(starts[-1]):
        x, y = task.draw()
        scales.append(scaler.get_scale())
        if step in spans:
            height, left = spans[step]
            gain = 2.0**height * ceiling(task, x, y) / scales[-1]
        overflowed = clipped_step(task, x, y, optimizer, scaler, gain if left > 0 else 1.0)
        found_inf.append(overflowed)
        left -= 1
        tick(step + 1)
    return {"spikes": [met(rule, scales, found_inf, start, *span) for start, span in spans.items()]}


def met(rule: Rule, scales: list[float], found_inf: list[bool], start: int, height: int, lasts: int) -> Record:
    """One spike beside T4: skips while it lasted, steps from its first until the scale was back (None: never)."""
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
    """The largest scale at which this batch's float32 gradient fits into fp16."""
    gradients = torch.autograd.grad(task.criterion(task.model(x), y), list(task.model.parameters()))
    return Histogram.of(torch.cat([gradient.flatten() for gradient in gradients])).ceiling(FP16)


def clipped_step(
    task: tasks.Task, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, scaler: GradScaler, gain: float
) -> bool:
    """One step on `gain` times the loss; returns whether it was skipped."""
    with fp16.autocast(x.device.type, fp16=True):
        loss = task.criterion(task.model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss * gain).backward()
    overflowed = not fp16.all_finite(fp16.flat_gradient(task.model))
    scaler.unscale_and_clip_(optimizer, max_norm=MAX_NORM)
    scaler.step(optimizer)
    scaler.update()
    return overflowed


# ------------------------------------------------------------------------------------------------- crashes


def crash(config: Config, name: str, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """The run of `scale_crash`, watched; over once its forward pass has overflowed for a while."""
    batches = fp16.prepare(seed)
    network = ResidualMLP(digits_data.PIXELS, 64, 12, digits_data.CLASSES)
    task = tasks.digits(tasks.Logits(network), batches, device, 64)
    largest = crash_signals.watch_activations(task.model)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=float(name.removeprefix("lr=")), fused=True)
    rule = Rule(growth_interval=config.crash_interval)
    scaler = GradScaler(device, growth_interval=config.crash_interval)
    seen: list[crash_signals.Seen] = []
    for step in loop.train(task, optimizer, scaler, config.crash_steps):
        seen.append(crash_signals.observe(step, largest()))
        tick(step.number + 1)
        if over(seen[-config.patience :], config.patience):
            break
    return watched(crash_signals.Series.of(rule, seen))


def over(latest: list[crash_signals.Seen], patience: int) -> bool:
    """Whether so many steps in a row were skipped, and the forward pass of each overflowed."""
    return len(latest) == patience and all(step.found_inf and math.isinf(step.activation) for step in latest)


def watched(run: crash_signals.Series) -> Record:
    """Columns, the crash, and each signal's alarms: of the whole run, and from step 10 on."""
    found_inf = flagged(run.found_inf.tolist())
    forward_overflow = flagged(np.isinf(run.activation).tolist())
    return {
        "watched": len(run.found_inf),
        "batch_losses": short(run.loss),
        "log2_scales": [int(x) for x in run.log2_scale],
        "found_inf": found_inf,
        "norms": short(run.norm),
        "activations": short(run.activation),
        "ceilings": [int(x) for x in run.ceiling],
        "crash_step": crash_step(forward_overflow, found_inf, len(run.found_inf)),
        "alarms": crash_signals.alarms(run),
        "alarms_from_10": crash_signals.alarms(run, first=10),
    }


def short(values: NDArray[np.float64]) -> list[float]:
    """Four digits, so that the file stays small."""
    return [float(f"{value:.4g}") for value in values]


def table(rows: Sequence[Record]) -> Table:
    """The signals before the crashes."""
    return crash_signals.table([row for row in rows if row["arm"].startswith("crash")])


if __name__ == "__main__":
    raise SystemExit(runner.main("overflow_storm"))
