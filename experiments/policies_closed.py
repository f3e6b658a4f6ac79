"""What does each loss-scale policy cost in training, where its skips cost steps and its low scales cost gradients?

Each policy trains a deep sigmoid network of its own, through `ampsim.torch.GradScaler`, with the same seeds. The
gradients of activations overflow before those of the weights do, and a policy that looks at the largest gradient sees
the weights' alone. With a delay k the scale alone is k steps late. Ceilings are found by trying, every few steps. The
arm `closed fp32` needs no policy. `policies` asks all of them on the same gradients.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from ampsim import Rule
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import series, tasks
from experiments.training.ceilings import ceiling
from experiments.training.loop import train
from experiments.training.policies import mean_and_deviation, policies, three_decimals, worst_burst

HALVINGS = 3  # the ceiling is known to 1/16 bit
POLICIES = policies(milestones=((100, 2.0**14), (200, 2.0**16)))
SHOWN_EVERY = 5  # steps between two scales that are kept


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 420  # backward passes per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    warm_up: Annotated[int, runner.BEFORE_THE_END] = 20  # of the steps, left out of the means
    batch_cpu: int = 32  # images per step
    batch_cuda: int = 256
    lr: float = 1e-2  # of Adam
    eps: float = 1e-15  # of Adam
    sample_every: int = 20  # steps between two searches for the ceiling, and two counts of zeros


SMOKE = Config(steps=6, seeds=(0,), warm_up=2, sample_every=4)


@dataclass(frozen=True)
class Trainer:
    """The policy that sets the loss scale, or float32 without one."""

    policy: str  # its name in `POLICIES`, or fp32
    family: str | None  # the class of the policy; None in float32
    delay: int = 0  # steps by which the scale is late

    def scaler(self, device: str) -> GradScaler:
        """Return our scaler with the policy, or torch's machine by its constants."""
        if self.family is None:
            return GradScaler(device, enabled=False)
        rule = POLICIES[self.policy]
        if isinstance(rule, Rule):
            return GradScaler(device, rule.init_scale, growth_interval=rule.growth_interval, depth=rule.delay)
        return GradScaler(device, policy=rule, depth=rule.delay)


def arms(config: Config) -> dict[str, Trainer]:
    trained = {name: Trainer(name, type(rule).__name__, rule.delay) for name, rule in POLICIES.items()}
    return {f"closed {name}": trainer for name, trainer in {"fp32": Trainer("fp32", None), **trained}.items()}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(config: Config, arm: Trainer, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train a network by one policy; the columns are explained in `data/README.md`."""
    task = tasks.make("sigmoid", seed, device, config.batch_cpu if device == "cpu" else config.batch_cuda)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=config.lr, eps=config.eps, fused=True)
    dtype = torch.float16 if arm.family else torch.float32
    log, sampled = [], []
    for step in train(task, optimizer, arm.scaler(device), config.steps, dtype=dtype):
        bits = math.log2(step.scale)
        log.append((bits, step.loss, step.found_inf))
        if step.number % config.sample_every == 0 and step.number >= config.warm_up and not step.found_inf:
            headroom = ceiling(task, step.batch, bits, HALVINGS) - bits if arm.family else math.nan
            sampled.append((headroom, (step.gradient == 0).float().mean().item()))
        tick(step.number + 1)
    return {**columns(log, sampled, config.warm_up), "test_loss": task.test_loss()}


def columns(log: list[tuple[float, float, bool]], sampled: list[tuple[float, float]], warm_up: int) -> Record:
    """Return the record, from (log2 scale, loss, overflow) per step and (headroom, zeros) per clean step sampled."""
    bits, losses, bad = map(np.array, zip(*log, strict=True))
    kept = bad[warm_up:]
    headroom, zero = np.array(sampled).reshape(-1, 2).T
    return {
        "skips": int(kept.sum()),
        "skip_rate": float(kept.mean()),
        "burst": worst_burst(kept),
        "headroom": mean_and_deviation(headroom, three_decimals) if np.isfinite(headroom).all() else None,
        "mean_log2_scale": three_decimals([bits[warm_up:].mean()])[0],
        "zero": mean_and_deviation(zero, three_decimals),
        "final_loss": series.six_digits([losses[-100:].mean()])[0],
        "found_inf": np.flatnonzero(bad).tolist(),
        "shown": three_decimals(bits[::SHOWN_EVERY]),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("policies_closed"))
