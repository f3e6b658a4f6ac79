"""What does the record of a run say that collapses, and when could it be seen?

A residual network without normalisation learns digits in fp16 while its learning rate warms up past what it can bear:
the gradients grow, until the forward pass overflows, and then the scale halves at every step. `ampsim.watch` records
it; `figures/report.png` is the page that `ampsim report` makes of the record. Device: cpu.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ampsim.records import Record
from ampsim.run_file import read_run, records
from ampsim.watch import watch
from experiments import runner
from experiments.training import fp16, tasks

DEVICES = ("cpu",)
OF_THIS_START = {"started", "argv", "versions"}  # the provenance has them


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 256  # of the optimizer, skipped ones among them
    seeds: tuple[int, ...] = (0,)
    batch: int = 64  # images per step
    blocks: int = 12  # residual blocks
    lr: float = 0.05  # of Adam, where the warm-up would end
    warm_up: int = 300  # steps that are not skipped
    growth_interval: int = 40  # clean steps before the scale doubles
    every: int = 8  # steps from one sample of the exponents to the next


SMOKE = Config(steps=4, blocks=1, every=2)


def arms(config: Config) -> dict[str, runner.Single]:
    return {"warm-up": runner.Single()}


def inputs() -> dict[str, str]:
    return tasks.inputs("residual12")


def run(config: Config, arm: runner.Single, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train, watched; the record is as in `ampsim.run_file`."""
    task = tasks.residual(fp16.prepare(seed), device, config.batch, blocks=config.blocks)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=config.lr, fused=True)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, config.warm_up)
    scaler = torch.amp.GradScaler(device, growth_interval=config.growth_interval)
    with tempfile.TemporaryDirectory(prefix="ampsim-run-") as folder:
        file = Path(folder) / "run.jsonl"
        with watch(task.model, optimizer, scaler, to=file, every=config.every, names="*.weight", still=0) as watched:
            for number in range(config.steps):
                optimizer.zero_grad()
                with fp16.autocast(device, fp16=True):
                    loss = task.loss()
                watched.log(loss=loss)
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.step(optimizer)
                scaler.update()
                if not watched.skipped:
                    warm_up.step()
                tick(number + 1)
        head = {name: value for name, value in read_run(file).items() if name not in OF_THIS_START}
        return {"run": head, "records": list(records(file))}


if __name__ == "__main__":
    raise SystemExit(runner.main("collapse_run"))
