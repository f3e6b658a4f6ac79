"""Which signal predicts that a loss scale will halve for ever, how long before, and how often does it mislead?

The residual network of `scale_crash` at three learning rates, in native fp16: the scale halves for ever at the higher
ones. Seven signals are watched, each with a threshold that was chosen before the runs; see `training/signals.py`.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from ampsim.core.machine import Rule
from ampsim.records import Record
from experiments import runner
from experiments.training import crash, series, signals, tasks

BATCH = 64  # images per step, as in `scale_crash`


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 210  # at most, per unit
    lrs: tuple[float, ...] = (0.02, 0.035, 0.05)  # of Adam, an arm each
    growth_interval: int = 50
    patience: int = 12  # skips in a row with a forward pass that overflows, after which a run is over


SMOKE = Config(steps=6, seeds=(0,), lrs=(0.05,))


def arms(config: Config) -> dict[str, crash.CrashArm]:
    interval = config.growth_interval
    return {f"crash lr={lr}": crash.CrashArm(init_scale=2.0**16, growth_interval=interval, lr=lr) for lr in config.lrs}


def inputs() -> dict[str, str]:
    return tasks.inputs("residual12")


def run(config: Config, arm: crash.CrashArm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Watch a run until its forward pass has overflowed for a while; the columns are explained in `data/README.md`."""
    task = tasks.make("residual12", seed, device, BATCH)
    largest = signals.watch_activations(task.model)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=arm.lr, fused=True)
    seen: list[signals.Seen] = []
    for step in arm.train(task, optimizer, config.steps + config.patience):
        seen.append(signals.observe(step, largest()))
        tick(min(step.number + 1, config.steps))
        undecided = over(seen[-1:], 1)  # what begins at the last steps is watched until it is a crash, or none
        if over(seen[-config.patience :], config.patience) or (len(seen) >= config.steps and not undecided):
            break
    return watched(signals.Series.of(Rule(growth_interval=config.growth_interval), seen))


def over(latest: list[signals.Seen], patience: int) -> bool:
    """Return whether so many steps in a row were skipped, and the forward pass of each overflowed."""
    return len(latest) == patience and all(step.found_inf and math.isinf(step.activation) for step in latest)


def watched(run: signals.Series) -> Record:
    """Return the columns, the crash, and each signal's alarms: of the whole run, and from step 10 on."""
    found_inf = series.flagged(run.found_inf.tolist())
    forward_overflow = series.flagged(np.isinf(run.activation).tolist())
    return {
        "watched": len(run.found_inf),
        "batch_losses": short(run.loss),
        "log2_scales": [int(x) for x in run.log2_scale],
        "found_inf": found_inf,
        "norms": short(run.norm),
        "activations": short(run.activation),
        "ceilings": [int(x) for x in run.ceiling],
        "crash_step": crash.crash_step(forward_overflow, found_inf, len(run.found_inf)),
        "alarms": signals.alarms(run),
        "alarms_from_10": signals.alarms(run, first=10),
    }


def short(values: NDArray[np.float64]) -> list[float]:
    """Round to four digits, so that the file stays small."""
    return [float(f"{value:.4g}") for value in values]


def table(rows: Sequence[Record]) -> Table:
    """Return the signals before the crashes."""
    return signals.table(rows)


if __name__ == "__main__":
    raise SystemExit(runner.main("crash_signals"))
