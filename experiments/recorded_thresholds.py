"""Which loss scale would each step of a training run have fit into fp16?

Four networks train in float32, so no loss scale influences them. Each step's *threshold* is the
scale at which the largest gradient of a parameter reaches fp16's largest number: 65504 / max|g|.
The thresholds are recorded in order. Every few steps, backward passes in fp16 at powers of two
check the threshold: in fp16, gradients of activations may overflow first, and rounding changes the
gradients of parameters. `policy_benchmark` replays loss-scale policies against these thresholds.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampsim.core.formats import FP16
from ampsim.core.json_lines import Record
from experiments import runner
from experiments.training import fp16, tasks
from experiments.training.thresholds import threshold

RECOMPUTED = ("sigmoid", "resnet")
PER_BIT = 16  # thresholds are recorded in sixteenths of a bit, rounded down


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 3000  # optimizer steps per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    check_every: int = 100  # steps between two checks of the threshold in fp16


SMOKE = Config(steps=6, seeds=(0,), check_every=3)


@dataclass(frozen=True)
class Network:
    """A task, and how its network trains."""

    task: str
    lr: float  # of Adam
    batch: int = 16  # images or windows of text per step


def arms(config: Config) -> dict[str, Network]:
    return {
        "sigmoid": Network("sigmoid", 1e-2),
        "residual": Network("residual", 1e-3),
        "resnet": Network("resnet", 1e-3),
        "gpt": Network("gpt", 1e-3, batch=4),
    }


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid", "gpt")


def run(
    config: Config, arm: Network, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one network; the columns are explained in `data/README.md`."""
    task = tasks.make(arm.task, seed, device, arm.batch)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=arm.lr, eps=1e-15)
    recorded, checks = [], []
    for step in range(config.steps):
        batch = x, y = task.draw()
        optimizer.zero_grad()
        task.criterion(task.model(x), y).backward()  # type: ignore[no-untyped-call]
        largest = fp16.flat_gradient(task.model).abs().max().item()
        recorded.append(math.floor(PER_BIT * math.log2(FP16.max_finite / largest)))
        if step % config.check_every == 0:
            power_of_two = recorded[-1] // PER_BIT
            checks.append(threshold(task, batch, power_of_two) - power_of_two)
        optimizer.step()
        tick(step + 1)
    return {"thresholds": recorded, "checks": checks}


if __name__ == "__main__":
    raise SystemExit(runner.main("recorded_thresholds"))
