"""What does a wrong initial loss scale cost, and can it be told before training?

Dynamic loss scaling from 2^0 to 2^32. A start above the gradients' ceiling loses a step per bit, until it no longer
overflows. A start below it loses range: G steps a bit, until the scale has grown to the ceiling, and
meanwhile small gradients vanish. The first batch tells the ceiling, by a few backward passes before training, and
with it both costs in closed form: a start m bits too low is T4's recovery from a spike, without the spike
(`ampsim.core.theory.recovery`).

Where vanished gradients cost loss: a deep sigmoid network. Where they do not: a residual network. From 2^0 the
sigmoid network is trained with longer growth intervals too. Adam's eps is 1e-15, so that it does not hide
what underflows.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import torch

from ampsim.core import theory
from ampsim.core.machine import Rule
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import series, tasks
from experiments.training.ceilings import ceiling
from experiments.training.loop import Log, train


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 400  # backward passes a unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    sigmoid_log2: tuple[int, ...] = (0, 4, 8, 12, 16, 20, 24, 28, 32)  # starts 2^k
    residual_log2: tuple[int, ...] = (0, 16, 32)
    interval: int = 20  # G
    slower: tuple[int, ...] = (50, 200)  # G of more arms of the sigmoid network, from 2^0
    batch_sigmoid: int = 40  # images per step on a CPU
    batch_residual: int = 8
    batch_cuda: int = 256  # of either network
    lr_sigmoid: float = 1e-2  # of Adam
    lr_residual: float = 1e-3
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
    sigmoid = arm.task == "sigmoid"
    on_cpu = config.batch_sigmoid if sigmoid else config.batch_residual
    task = tasks.make(arm.task, seed, device, on_cpu if device == "cpu" else config.batch_cuda)
    lr = config.lr_sigmoid if sigmoid else config.lr_residual
    optimizer = torch.optim.Adam(task.model.parameters(), lr=lr, eps=config.eps, fused=True)
    scaler = GradScaler(device, init_scale=2.0**arm.init_log2, growth_interval=arm.growth_interval)
    log = Log(config.block)
    ceilings: list[float] = []
    for step in train(task, optimizer, scaler, config.steps):
        log.add(step)
        if step.number % config.seek_every == 0:
            ceilings.append(ceiling(task, step.batch, (ceilings or [arm.init_log2])[-1]))
        tick(step.number + 1)
    return {
        **losses(log, config.block, config.plateau),
        "zero": series.six_digits(log.zero),
        "ceilings": ceilings,
        "scale_changes": series.changes(log.scales),
        "found_inf": log.found_inf,
        **costs(arm, log, ceilings, config.seek_every),
        "test_loss": task.test_loss(),
    }


def losses(log: Log, block: int, plateau: float) -> Record:
    """Return the mean loss of each block, and the first step of the first that lies below the plateau."""
    means = [math.fsum(part) / len(part) for part in blocks(log.losses, block)]
    below = (place * block for place, mean in enumerate(means) if mean < plateau)
    return {"block_loss": series.six_digits(means), "left_plateau": next(below, None)}


def blocks(values: Sequence[float], size: int) -> list[Sequence[float]]:
    """Return successive parts of `size`; the last may be shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def costs(arm: Start, log: Log, ceilings: Sequence[float], seek_every: int) -> Record:
    """Return what the start cost, and what the first batch's ceiling predicted."""
    skipped, steps = set(log.found_inf), range(len(log.scales))
    lost = len(list(takewhile(skipped.__contains__, steps)))
    # the scale has arrived where the next power of two would overflow, or this one did
    gaps = [ceilings[step // seek_every] - math.log2(log.scales[step]) for step in steps[lost:]]
    climb = list(takewhile(lambda gap: gap > 0, (0 if t in skipped else gap for t, gap in enumerate(gaps, lost))))
    arrived = len(climb) < len(gaps)
    return {
        "lost_steps": lost,
        "climb_steps": len(climb) if arrived else None,
        "climb_bits": math.fsum(climb) if arrived else None,
        "predicted": predict(arm, ceilings[0]),
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
