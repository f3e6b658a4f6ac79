"""What does it cost in final loss that a scaler shared by two threads unscales by a wrong scale now and then?

A small network on scikit-learn's digits, in fp16 with SGD. One thread computes gradients, another owns the optimizer,
one iteration behind, as where the optimizer has been moved to a thread of its own; torch's scaler is called from both
as a naive user would, ours has a ticket an iteration. Overflows are those of the network. A wrong scale is the next
one, so a step is twice as long as it should be, or half as long.

Device: cpu.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Queue
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ampsim.records import Record
from experiments import runner
from experiments.models import mlp
from experiments.training import digits_data, fp16, tasks
from experiments.training.two_threads import MAKERS, Iteration, Naive

REPEATS = False  # threads run as they run
DEVICES = ("cpu",)
DEPTH = 1


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1500  # backward passes per unit
    seeds: tuple[int, ...] = tuple(range(10))  # of weights and batches
    batch: int = 32  # images per step
    width: int = 64  # units a hidden layer, of two
    lr: float = 0.1  # of SGD
    init_log2: int = 16  # of the scale, near the ceiling
    growth_intervals: tuple[int, ...] = (5, 50)  # an arm each


SMOKE = Config(steps=20, seeds=(0,), growth_intervals=(2,))


@dataclass(frozen=True)
class Arm:
    """A scaler at a growth interval."""

    scaler: str  # one of MAKERS
    growth_interval: int


def arms(config: Config) -> Mapping[str, Arm]:
    return {f"{name} G={interval}": Arm(name, interval) for interval in config.growth_intervals for name in MAKERS}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


class Handed(NamedTuple):
    """An item of the queue."""

    iteration: Iteration
    grads: list[Tensor]  # scaled
    multiplied: float  # the scale that is in them


@dataclass
class Run:
    """A network, its copy that computes, and what was counted on the optimizer's thread."""

    task: tasks.Task
    masters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    scaler: Naive
    queue: "Queue[Handed | None]" = field(default_factory=lambda: Queue(maxsize=DEPTH))
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while weights are copied, or read
    wrong: int = 0
    skipped: int = 0
    errors: list[str] = field(default_factory=list)  # types

    def compute(self, tick: Callable[[int], None], steps: int) -> None:
        """Scale, run the backward pass and hand over."""
        params = list(self.task.model.parameters())
        for step in range(steps):
            try:
                iteration = self.scaler.begin()
                with self.lock, fp16.autocast("cpu", fp16=True):
                    loss = self.task.loss()
                scaled = self.scaler.scaler.scale(loss, **iteration)
                multiplied = float(scaled.detach() / loss.detach())
                with self.lock:
                    grads = list(torch.autograd.grad(scaled, params))
            except RuntimeError as error:  # torch's, when update() writes the scale that autograd saved
                self.errors.append(type(error).__name__)
                continue
            self.queue.put(Handed(iteration, grads, multiplied))
            tick(step + 1)

    def optimize(self) -> None:
        """Unscale, step and update, and copy the weights to the network that computes."""
        params = list(self.task.model.parameters())
        while (handed := self.queue.get()) is not None:
            try:
                self.step(handed)
            except Exception as error:
                self.errors.append(type(error).__name__)
                self.scaler.close()  # no update will come that the other thread may be waiting for
            with self.lock, torch.no_grad():
                for param, master in zip(params, self.masters, strict=True):
                    param.copy_(master)

    def step(self, handed: Handed) -> None:
        """Unscale, look, step and update."""
        for master, grad in zip(self.masters, handed.grads, strict=True):
            master.grad = grad.clone()
        self.scaler.unscale(self.optimizer, handed.iteration)
        if all(fp16.all_finite(grad) for grad in handed.grads):
            self.wrong += divided(handed.grads, self.masters) != handed.multiplied
        else:
            self.skipped += 1
        self.scaler.finish(self.optimizer, handed.iteration)


def divided(before: list[Tensor], masters: list[nn.Parameter]) -> float:
    """Return the number that gradients were divided by: that of their largest element."""
    largest = max(range(len(before)), key=lambda i: float(before[i].abs().max()))
    at = int(before[largest].abs().argmax())
    after = [master.grad for master in masters if master.grad is not None]
    return float(before[largest].flatten()[at] / after[largest].flatten()[at])


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train one arm; the columns are explained in `data/README.md`."""
    generator = fp16.prepare(seed)
    task = tasks.digits(mlp.make(config.width), generator, device, config.batch)
    masters = [nn.Parameter(param.detach().clone()) for param in task.model.parameters()]
    scaler = MAKERS[arm.scaler](arm.growth_interval, DEPTH, 2.0**config.init_log2)
    training = Run(task, masters, torch.optim.SGD(masters, lr=config.lr), scaler)
    thread = threading.Thread(target=training.optimize, name="optimizer")
    thread.start()
    try:
        training.compute(tick, config.steps)
    finally:
        training.queue.put(None)
        thread.join()
        scaler.close()
    return {
        "wrong": training.wrong,
        "skipped": training.skipped,
        "errors": len(training.errors),
        "train_loss": task.evaluate(digits_data.load(device)[:2]),
        "test_loss": task.test_loss(),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("threads_loss"))
