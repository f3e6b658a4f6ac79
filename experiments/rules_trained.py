"""Does the rule for the loss scale, or its initial value, affect training?

A deep sigmoid network trains in fp16 under each rule, through `ampsim.torch.GradScaler`, and in
float32. All arms share ten seeds. Weights and batches depend only on the seed, so losses are
compared in pairs. From an initial scale just above the threshold: torch's rule with growth
intervals G from 5 to 2000; two more rules that grow as fast as G = 20 does, a / G = 1/20 bit per
step, in other steps a up and b down; a scale that is two steps late; and policies that read the
largest gradient. Further arms start far below and far above the threshold.

Thresholds are found by trial every few steps, because in this network the gradients of activations
may overflow before those of the weights. T7 says that skip rate times unused bits depends only on
the speed of growth, and T4 gives the cost of an initial scale that is too low.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ampsim import Rule
from ampsim.core.json_lines import Record
from ampsim.core.policies import Headroom, LogMax, Policy
from ampsim.torch import AsyncGradScaler, GradScaler
from experiments import runner
from experiments.training import series, tasks
from experiments.training.loop import Log, train
from experiments.training.thresholds import threshold

RECOMPUTED = ("fp32", "G=20", "headroom 1 bit", "LogMax as published")
START = (
    2.0**20
)  # within a bit of the network's threshold, so that no climb is measured; LogMax starts at 1
HALVINGS = 3  # the threshold is known to 1/16 bit


def machine(
    interval: int,
    up: float = 1.0,
    down: float = 1.0,
    start: float = START,
    delay: int = 0,
) -> Rule:
    """Return torch's machine that grows by `up` bits and backs off by `down`."""
    return Rule(start, 2.0**up, 2.0**-down, interval, delay=delay)


RULES: dict[str, Rule | Policy] = {
    **{f"G={interval}": machine(interval) for interval in (5, 20, 2000)},
    "G=10 a=0.5 b=0.5": machine(10, 0.5, 0.5),
    "G=5 a=0.25 b=0.25": machine(5, 0.25, 0.25),
    "G=20 k=2": machine(20, delay=2),
    "headroom 1 bit": Headroom(init_scale=START, margin=1),
    "headroom 3 bits": Headroom(init_scale=START, margin=3),
    "LogMax as published": LogMax(faithful=True),
    "G=20 from 2^0": machine(20, start=1.0),
    "G=200 from 2^0": machine(200, start=1.0),
    "G=20 from 2^32": machine(20, start=2.0**32),
}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 420  # backward passes per unit
    seeds: tuple[int, ...] = tuple(range(10))  # of weights and batches
    warm_up: Annotated[int, runner.BEFORE_THE_END] = (
        20  # of the steps, left out of skips and unused bits
    )
    batch_cpu: int = 32  # images per step
    batch_cuda: int = 256
    lr: float = 1e-2  # of Adam
    eps: float = 1e-15  # of Adam
    sample_every: int = (
        20  # steps between two searches for the threshold, and two counts of zeros
    )
    block: int = 10  # steps per mean of the loss
    plateau: float = (
        2.2  # nats; a network that tells nothing apart stands at ln 10 = 2.30
    )


SMOKE = Config(steps=6, seeds=(0,), warm_up=2, sample_every=4, block=2)


@dataclass(frozen=True)
class Trained:
    """A rule by its name, and what the reference machine needs to repeat it; no interval: float32,
    or a policy.
    """

    rule: str
    growth_interval: int | None = None
    growth_bits: float = 1.0
    backoff_bits: float = 1.0
    delay: int = 0  # steps by which the scale is late

    def scaler(self, device: str) -> Any:
        """Return our scaler with the rule; one that does nothing in float32."""
        rule = RULES.get(self.rule)
        if rule is None:
            return GradScaler(device, enabled=False)
        if not isinstance(rule, Rule):
            return GradScaler(device, policy=rule)
        constants = (
            rule.init_scale,
            rule.growth_factor,
            rule.backoff_factor,
            rule.growth_interval,
        )
        if rule.delay:
            return AsyncGradScaler(device, *constants, depth=rule.delay)
        return GradScaler(device, *constants)


def arms(config: Config) -> dict[str, Trained]:
    def arm(name: str, rule: Rule | Policy) -> Trained:
        if not isinstance(rule, Rule):
            return Trained(name)
        up, down = math.log2(rule.growth_factor), -math.log2(rule.backoff_factor)
        return Trained(name, rule.growth_interval, up, down, rule.delay)

    return {
        "fp32": Trained("fp32"),
        **{name: arm(name, rule) for name, rule in RULES.items()},
    }


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(
    config: Config, arm: Trained, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train a network under one rule; the columns are explained in `data/README.md`."""
    task = tasks.make(
        "sigmoid",
        seed,
        device,
        config.batch_cpu if device == "cpu" else config.batch_cuda,
    )
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=config.lr, eps=config.eps, fused=True
    )
    in_fp16, log, thresholds, clean = arm.rule in RULES, Log(), [], []
    dtype = torch.float16 if in_fp16 else torch.float32
    for step in train(task, optimizer, arm.scaler(device), config.steps, dtype=dtype):
        log.add(step)
        if step.number % config.sample_every == 0:
            bits = math.log2(step.scale)
            thresholds.append(
                threshold(task, step.batch, bits, HALVINGS) if in_fp16 else math.nan
            )
            if step.number >= config.warm_up and not step.found_inf:
                clean.append(
                    (thresholds[-1] - bits, (step.gradient == 0).float().mean().item())
                )
        tick(step.number + 1)
    return {**columns(config, log, thresholds, clean), "test_loss": task.test_loss()}


def columns(
    config: Config,
    log: Log,
    thresholds: Sequence[float],
    clean: Sequence[tuple[float, float]],
) -> Record:
    """Return the record of a run: all `thresholds` sampled, and (headroom, zeros) of the `clean`
    steps among them.
    """
    skipped = set(log.found_inf)
    headroom, zero = np.array(clean).reshape(-1, 2).T
    blocks = [
        log.losses[start : start + config.block]
        for start in range(0, len(log.losses), config.block)
    ]
    below = (
        place * config.block
        for place, part in enumerate(blocks)
        if np.mean(part) < config.plateau
    )
    return {
        "skip_rate": sum(step >= config.warm_up for step in skipped)
        / (config.steps - config.warm_up),
        "headroom": mean_and_deviation(headroom)
        if np.isfinite(headroom).all()
        else None,
        "zero": mean_and_deviation(zero),
        "first_ceiling": None if math.isnan(thresholds[0]) else thresholds[0],
        "lost_steps": len(list(takewhile(skipped.__contains__, range(config.steps)))),
        "left_plateau": next(below, None),
        "final_loss": series.six_digits([float(np.mean(log.losses[-100:]))])[0],
        "scale_changes": series.changes(log.scales),
        "found_inf": log.found_inf,
    }


def mean_and_deviation(values: NDArray[np.float64]) -> list[float] | None:
    """Return mean and standard deviation, or None where there are no values."""
    return series.six_digits([values.mean(), values.std()]) if len(values) else None


if __name__ == "__main__":
    raise SystemExit(runner.main("rules_trained"))
