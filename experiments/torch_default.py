"""What does torch's default scaler do in a run of more than three of its growth intervals?

An interval of 2000 is longer than most small runs, in which the default is a fixed scale of 2^16. Here a small network
is trained for more than three of them, by `torch.amp.GradScaler` with nothing set.

Device: cpu, or cuda with `--device cuda`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampsim.records import Record
from experiments import runner
from experiments.models import mlp
from experiments.training import fp16, series, tasks


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 9000  # backward passes per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    batch: int = 32  # images per step
    width: int = 64  # units a hidden layer, of two
    lr: float = 0.05  # of SGD


SMOKE = Config(steps=8, seeds=(0,), batch=4)


@dataclass(frozen=True)
class Default:
    """torch's scaler as it comes."""

    growth_interval: int = 2000


def arms(config: Config) -> dict[str, Default]:
    return {"torch": Default()}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(config: Config, arm: Default, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train with torch's scaler; the columns are explained in `data/README.md`."""
    generator = fp16.prepare(seed)  # before the weights are drawn
    task = tasks.digits(mlp.make(config.width), generator, device, config.batch)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=config.lr)
    scaler = torch.amp.GradScaler(device)
    scales, found_inf = [], []
    for number in range(config.steps):
        scales.append(scaler.get_scale())
        with fp16.autocast(device, fp16=True):
            loss = task.loss()
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < scales[-1]:
            found_inf.append(number)
        tick(number + 1)
    return {"scale_changes": series.changes(scales), "found_inf": found_inf, "test_loss": task.test_loss()}


if __name__ == "__main__":
    raise SystemExit(runner.main("torch_default"))
