"""What does a wrong initial loss scale cost, and can it be told before training?

Dynamic loss scaling from 2^0 to 2^32. A start above the gradients' ceiling loses a step per bit, until it no longer
overflows. A start below it loses range: G steps a bit, until the scale has grown to the ceiling, and
meanwhile small gradients vanish. The first batch tells the ceiling, by a few backward passes before training, and
with it both costs in closed form: a start m bits too low is T4's recovery from a spike, without the spike
(`ampsim.core.theory.recovery`).

Where vanished gradients cost loss: a deep sigmoid network. Where they do not: a residual network. From 2^0 the
sigmoid network is trained with longer growth intervals too. Adam's eps is 1e-15, so that it does not hide
what underflows.

Takes about 35 s on one CPU core (native fp16). Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

import torch

from ampsim.core import theory
from ampsim.core.machine import Rule
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import series, tasks
from experiments.training.ceilings import ceiling
from experiments.training.loop import Step, train


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 400  # backward passes a unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    sigmoid_log2: tuple[int, ...] = (0, 4, 8, 12, 16, 20, 24, 28, 32)  # starts 2^k
    residual_log2: tuple[int, ...] = (0, 16, 32)
    interval: int = 20  # G
    slower: tuple[int, ...] = (50, 200)  # G of more arms of the sigmoid network, from 2^0
    on_cpu: tuple[int, int] = (40, 8)  # images a step, sigmoid and residual
    on_cuda: tuple[int, int] = (256, 256)
    lrs: tuple[float, float] = (1e-2, 1e-3)  # of Adam
    eps: float = 1e-15  # of Adam
    block: int = 10  # steps a mean of the loss
    seek_every: int = 20  # steps between two searches for the ceiling
    plateau: float = 2.2  # nats; a network that tells nothing apart stands at ln 10 = 2.30


SMOKE = Config(
    steps=12, seeds=(0,), sigmoid_log2=(0, 24), residual_log2=(16,), slower=(5,), interval=2, block=4, seek_every=4
)


@dataclass(frozen=True)
class Start:
    """A network and the loss scale that its training starts from."""

    task: Literal["sigmoid", "residual"]
    init_log2: int
    growth_interval: int


def arms(config: Config) -> dict[str, Start]:
    made = [Start("sigmoid", k, config.interval) for k in config.sigmoid_log2]
    made += [Start("sigmoid", 0, interval) for interval in config.slower]
    made += [Start("residual", k, config.interval) for k in config.residual_log2]
    return {f"{start.task} 2^{start.init_log2} G={start.growth_interval}": start for start in made}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid", "residual")


def run(config: Config, arm: Start, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train from one start; the columns are explained in `data/README.md`."""
    place = ("sigmoid", "residual").index(arm.task)
    batch = (config.on_cpu if device == "cpu" else config.on_cuda)[place]
    task = tasks.make(arm.task, seed, device, batch)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=config.lrs[place], eps=config.eps, fused=True)
    scaler = GradScaler(device, init_scale=2.0**arm.init_log2, growth_interval=arm.growth_interval)
    log = Log(config.block, config.seek_every)
    for step in train(task, optimizer, scaler, config.steps):
        log.step(step)
        if step.number % config.seek_every == 0:
            near = (log.ceilings or [arm.init_log2])[-1]
            log.ceilings.append(ceiling(task, step.batch, near))
        tick(step.number + 1)
    return {**log.record(config.plateau), **costs(arm, log), "test_loss": task.test_loss()}


@dataclass
class Log:
    """The columns of one unit."""

    block: int
    seek_every: int
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    found_inf: list[int] = field(default_factory=list)
    zero: list[float] = field(default_factory=list)  # at the start of each block: share of the elements
    ceilings: list[float] = field(default_factory=list)  # at each search: log2 of the largest power of two

    def step(self, step: Step) -> None:
        self.losses.append(step.loss)
        self.scales.append(step.scale)
        if step.found_inf:
            self.found_inf.append(step.number)
        if step.number % self.block == 0:
            self.zero.append((step.gradient == 0).float().mean().item())

    def record(self, plateau: float) -> Record:
        loss = [math.fsum(part) / len(part) for part in blocks(self.losses, self.block)]
        below = [place * self.block for place, mean in enumerate(loss) if mean < plateau]
        return {
            "block_loss": series.six_digits(loss),
            "left_plateau": below[0] if below else None,
            "zero": series.six_digits(self.zero),
            "ceilings": self.ceilings,
            "scale_changes": series.changes(self.scales),
            "found_inf": self.found_inf,
        }


def blocks(values: Sequence[float], size: int) -> list[Sequence[float]]:
    """Return successive parts of `size`; the last may be shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def costs(arm: Start, log: Log) -> dict[str, Any]:
    """Return what the start cost, and what the first batch's ceiling foretold."""
    skipped, steps = set(log.found_inf), range(len(log.scales))
    lost = len(list(takewhile(skipped.__contains__, steps)))
    # the scale has arrived where the next power of two would overflow, or this one did
    gaps = [log.ceilings[step // log.seek_every] - math.log2(log.scales[step]) for step in steps[lost:]]
    climb = list(takewhile(lambda gap: gap > 0, (0 if t in skipped else gap for t, gap in enumerate(gaps, lost))))
    arrived = len(climb) < len(gaps)
    return {
        "lost_steps": lost,
        "climb_steps": len(climb) if arrived else None,
        "climb_bits": math.fsum(climb) if arrived else None,
        "predicted": predict(arm, log.ceilings[0]),
    }


def predict(arm: Start, first: float) -> dict[str, float] | None:
    """Return the same three, had the ceiling stood still where it was at first; None where there was none."""
    if math.isinf(first):
        return None
    low, high = max(0, first - arm.init_log2), max(0, arm.init_log2 - first)
    # T4: m skips down, then m G steps up
    spike = theory.recovery(Rule(growth_interval=arm.growth_interval), low, int(low))
    down = low * (low - 1) / 2
    return {"lost_steps": high, "climb_steps": spike.steps - spike.skips, "climb_bits": spike.deficit - down}


if __name__ == "__main__":
    raise SystemExit(runner.main("init_scale"))
