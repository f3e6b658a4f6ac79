"""How does an optimizer that runs k steps behind on its own thread affect training?

A byte-level GPT trains in fp16 with Adam in a real pipeline: one thread computes, and an
`OptimizerThread` steps. Iteration i uses the weights and the loss scale
after i - k steps. Arms:

- `depth k`: the threads run freely.
- `depth k latest`: the optimizer's thread delays each step as long as possible, k iterations. The
  same seed must give the same bits for any schedule of the threads: `digest` covers every loss and
  every weight.
- `scale k`: only the loss scale is k steps late, which isolates the cost of the late scale.

In every arm the scales are compared with `ampsim.core.pipeline`, the pure model, on the same
overflows. Adam's eps is 1e-15.

Device: cpu, or cuda with `--device cuda`, where the optimizer has its own stream and the model is
GPT-2 small.
"""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from ampsim.core import pipeline
from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.torch import AsyncGradScaler, OptimizerThread
from experiments import runner
from experiments.training import fp16, series, tasks
from experiments.training.pipelined import Pipelined


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 120  # backward passes a unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    depths: Annotated[tuple[int, ...], runner.FROM_0] = (0, 1, 2, 4)  # k
    control: int = 4  # k of `latest` and of `scale`
    interval: int = 10  # G
    init_log2: int = 18  # of the scale, near the threshold
    batch_cpu: int = 4  # windows of text a step
    batch_cuda: int = 8
    lr_cpu: float = 1e-3  # of Adam
    lr_cuda: float = 3e-4
    eps: float = 1e-15  # of Adam


SMOKE = Config(
    steps=4, seeds=(0,), depths=(1,), control=1, interval=2, init_log2=30, batch_cpu=1
)


@dataclass(frozen=True)
class Delay:
    """A number of iterations by which the loss scale is late, one by which the weights are, and the
    schedule.
    """

    scale: int  # iterations
    weights: int
    # whether the optimizer's thread waits before each step until it can wait no longer
    latest: bool = False


def arms(config: Config) -> dict[str, Delay]:
    k = config.control
    controls = {
        f"depth {k} latest": Delay(k, k, latest=True),
        f"scale {k}": Delay(k, 0),
    }
    return {f"depth {depth}": Delay(depth, depth) for depth in config.depths} | controls


def inputs() -> dict[str, str]:
    return tasks.inputs("gpt")


def run(
    config: Config, arm: Delay, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one arm; the columns are explained in `data/README.md`."""
    on_cpu = device == "cpu"
    task = tasks.make(
        "gpt", seed, device, config.batch_cpu if on_cpu else config.batch_cuda
    )
    pipe = Pipe(task, arm, config, device)
    try:
        for step in range(config.steps):
            pipe.iterate()
            tick(step + 1)
        pipe.finish()
    finally:
        pipe.close()
    rule = Rule(2.0**config.init_log2, growth_interval=config.interval)
    modelled = pipeline.trajectory(rule, arm.scale, pipe.found_inf)[: config.steps]
    return {
        "loss": series.six_digits(pipe.losses),
        "test_loss": task.test_loss(),
        "scale_changes": series.changes(pipe.scales),
        "found_inf": [step for step, bad in enumerate(pipe.found_inf) if bad],
        "skipped": sum(pipe.skipped),
        "unlike_model": sum(a != b for a, b in zip(pipe.scales, modelled, strict=True)),
        "digest": pipe.digest(),
    }


class Loss(nn.Module):
    """A model and its criterion in fp16: what a pipeline calls."""

    def __init__(self, task: tasks.Task, device: str) -> None:
        super().__init__()
        self.model, self._criterion, self._device = task.model, task.criterion, device

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the batch's loss, shape ()."""
        with fp16.autocast(self._device, fp16=True):
            return self._criterion(self.model(x), y)


@dataclass
class Pipe:
    """A pipeline, and what was seen on its way. `skipped` is written by the optimizer's thread."""

    task: tasks.Task
    arm: Delay
    config: Config
    device: str
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    found_inf: list[bool] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, on_cpu = self.config, self.device == "cpu"
        self._thread, self._gate = OptimizerThread(), threading.Semaphore(0)
        self._model = Pipelined(
            Loss(self.task, self.device), depth=self.arm.weights, thread=self._thread
        )
        lr = config.lr_cpu if on_cpu else config.lr_cuda
        self._optimizer = torch.optim.Adam(
            self._model.parameters(), lr=lr, eps=config.eps, fused=True
        )
        self._scaler = AsyncGradScaler(
            self.device,
            2.0**config.init_log2,
            growth_interval=config.interval,
            depth=self.arm.scale,
            executor=self._thread,
        )

    def iterate(self) -> None:
        """Compute, and hand over to the optimizer's thread."""
        ticket = self._scaler.begin_iteration()
        scaled = self._model.forward_backward(
            self.task.draw(), lambda loss: self._scaler.scale(loss, ticket)
        )
        self.losses.append(self._scaler.loss_value(scaled, ticket).item())
        self.scales.append(ticket.value.scale)
        self.found_inf.append(not fp16.all_finite(fp16.flat_gradient(self.task.model)))

        def step() -> None:
            if self.arm.latest:
                self._gate.acquire()
            self._scaler.step(self._optimizer, ticket=ticket)
            self.skipped.append(self._scaler.last_step.skipped)
            self._optimizer.zero_grad()

        self._model.step(step)
        self._scaler.update(ticket=ticket)
        if (
            len(self.losses) > self.arm.weights
        ):  # the next iteration needs the oldest step
            self._gate.release()

    def finish(self) -> None:
        """Wait for all steps; the model has the last weights."""
        self._gate.release(len(self.losses))
        self._model.synchronize()
        self._scaler.synchronize()

    def close(self) -> None:
        """End the thread, also where it waits for iterations that will not come."""
        self._gate.release(len(self.losses) + 1)
        self._thread.close()

    def digest(self) -> str:
        """Return the first 16 digits of the sha256 of every loss and of the last weights."""
        weights = fp16.flat_parameters(self.task.model).cpu().numpy()
        return hashlib.sha256(
            repr(self.losses).encode() + weights.tobytes()
        ).hexdigest()[:16]


if __name__ == "__main__":
    raise SystemExit(runner.main("async_depth"))
