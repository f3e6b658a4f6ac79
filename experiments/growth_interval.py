"""What does the growth interval G trade, and does training notice?

A short interval overflows often and uses fp16's range to the top; a long one skips seldom and leaves bits unused. A
deep sigmoid network is trained in fp16 from a scale just above its ceiling, so that no climb is measured, with G from
5 to 2000 and torch's factors. Four more arms keep the speed of the climb, v = a / G = 1/20 bit per step, and split it
otherwise: growth of a bits, backoff of b bits. T7 says that skip rate times unused bits depends on v alone.

Theorems T1 (a bound on the skips), T3 (the skips, from the distribution of the run's own ceilings) and T7 are held
against the runs; nothing is fitted. Ceilings are found by trying, every few steps: in this network the gradients of
activations may overflow before those of the weights do.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from ampsim.core import theory
from ampsim.core.machine import Rule
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import series, tasks
from experiments.training.ceilings import ceiling
from experiments.training.loop import Log, train
from experiments.training.policies import mean_and_deviation

HALVINGS = 3  # the ceiling is known to 1/16 bit


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 650  # backward passes a unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    intervals: tuple[int, ...] = (5, 10, 20, 50, 100, 200, 500, 2000)  # arms with a = b = 1
    split: tuple[tuple[int, float, float], ...] = ((20, 1, 3), (10, 0.5, 0.5), (5, 0.25, 1), (5, 0.25, 0.25))  # G, a, b
    start_log2: int = 20  # of the scale
    warm_up: Annotated[int, runner.BEFORE_THE_END] = 20  # steps left out, while the scale comes down to the ceiling
    batch_cpu: int = 32  # images per step
    batch_cuda: int = 256
    lr: float = 1e-2  # of Adam
    eps: float = 1e-15  # of Adam
    sample_every: int = 20  # steps between two searches for the ceiling, and two counts of zeros


SMOKE = Config(steps=24, seeds=(0,), intervals=(2, 20), split=((5, 0.25, 0.25),), warm_up=4, sample_every=4)


@dataclass(frozen=True)
class GrowthRule:
    """A growth interval and factors, torch's if they are not given."""

    growth_interval: int
    growth_bits: float = 1.0  # a
    backoff_bits: float = 1.0  # b

    @property
    def rule(self) -> Rule:
        """The rule, from torch's first scale."""
        return Rule(2.0**16, 2.0**self.growth_bits, 2.0**-self.backoff_bits, self.growth_interval)


def arms(config: Config) -> dict[str, GrowthRule]:
    usual = {f"G={interval}": GrowthRule(interval) for interval in config.intervals}
    return usual | {f"G={interval} a={a:g} b={b:g}": GrowthRule(interval, a, b) for interval, a, b in config.split}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(config: Config, arm: GrowthRule, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train under one rule; the columns are explained in `data/README.md`."""
    rule = arm.rule
    batch = config.batch_cpu if device == "cpu" else config.batch_cuda
    task = tasks.make("sigmoid", seed, device, batch)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=config.lr, eps=config.eps, fused=True)
    scaler = GradScaler(
        device, 2.0**config.start_log2, rule.growth_factor, rule.backoff_factor, rule.growth_interval
    )  # fmt: skip
    log, ceilings, clean = Log(), [], []
    for step in train(task, optimizer, scaler, config.steps):
        log.add(step)
        if step.number >= config.warm_up and step.number % config.sample_every == 0:
            bits = math.log2(step.scale)
            ceilings.append(ceiling(task, step.batch, bits, HALVINGS))
            if not step.found_inf:
                clean.append((ceilings[-1] - bits, (step.gradient == 0).float().mean().item()))
        tick(step.number + 1)
    return {**columns(rule, log, config.warm_up, ceilings, clean), "test_loss": task.test_loss()}


def columns(
    rule: Rule, log: Log, warm_up: int, ceilings: Sequence[float], clean: Sequence[tuple[float, float]]
) -> Record:
    """Return the record of a run: `ceilings` are those sampled, `clean` has (headroom, zeros) of the clean ones."""
    bits = [math.log2(scale) for scale in log.scales[warm_up:]]
    skipped = set(log.found_inf)
    found = [step in skipped for step in range(warm_up, len(log.scales))]
    headroom, zero = np.array(clean).reshape(-1, 2).T
    finite = [level for level in ceilings if math.isfinite(level)]
    return {
        "steps": len(found),
        "skips": sum(found),
        "mean_log2_scale": series.six_digits([float(np.mean(bits))])[0],
        "headroom": mean_and_deviation(headroom),
        "zero": mean_and_deviation(zero),
        "ceiling": mean_and_deviation(finite),
        "ceilings": sorted([level, count] for level, count in Counter(map(math.floor, finite)).items()),
        "budget": budget(rule, bits, found),
        "final_loss": series.six_digits([float(np.mean(log.losses[-100:]))])[0],
        "scale_changes": series.changes(log.scales),
        "found_inf": log.found_inf,
    }


def budget(rule: Rule, bits: list[float], found: list[bool]) -> dict[str, float]:
    """Hold T1 over the steps between the first overflow and the last one: exactly, and as a bound.

    That is where every clean step's count starts at 0 and ends at one that is known.
    """
    bad = [step for step, flag in enumerate(found) if flag]
    if len(bad) < 2:
        return {"skips": 0, "exact": 0.0, "bound": 0.0}
    history = found[bad[0] + 1 : bad[-1] + 1]
    descent = bits[bad[0] + 1] - (bits[bad[-1]] - theory.bits(rule)[1])
    lost = theory.wasted(history, rule.growth_interval)
    return {
        "skips": sum(history),
        "exact": round(theory.skips(rule, len(history), descent, lost), 6),
        "bound": round(theory.skips(rule, len(history), descent), 6),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("growth_interval"))
