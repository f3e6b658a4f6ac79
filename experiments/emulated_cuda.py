"""Would a CUDA card's autocast lists or matrix units change what a loss scale does?

Six models train in fp16 on a CPU that emulates a card. Arms: the CPU's or CUDA's autocast lists,
times this CPU's sums, the matrix units of Volta, Ampere (Turing and Ada are equal), and Hopper
(Blackwell is equal), and two controls on Hopper's unit: an fp16 accumulator, and four partial sums
in fp16, as torch allows with `allow_fp16_reduced_precision_reduction`.

Each arm trains on its own. The first scale is the overflow threshold of a first batch. In each step
the batch is also differentiated by the CPU's lists and sums at the arm's weights, so that overflow,
the threshold, and the gradient are compared at equal weights.

Every number is emulated: no card computed it. Not emulated: cuDNN's choice of algorithm, flash
attention's tiles, atomic additions, and CUDA's elementwise kernels.

Device: cpu.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite, log2
from typing import Annotated

from torch import Tensor, nn

from ampsim import Rule
from ampsim.core.json_lines import Record
from experiments import runner
from experiments.emulation import autocast_lists, half_products
from experiments.training import (
    crash,
    fp16,
    loop,
    series,
    small_runs,
    tasks,
    thresholds,
)
from experiments.training.small_runs import RECIPES, differentiate
from experiments.training.tasks import Batch, Task
from experiments.training.what_fp16_did import compare

DEVICES = ("cpu",)
REQUIRES = ("numba",)


RECOMPUTED = (
    "sigmoid, cpu, cpu", "sigmoid, cpu, hopper", "sigmoid, cuda, cpu", "sigmoid, cuda, hopper",
    "resnet, cpu, cpu", "resnet, cpu, hopper", "resnet, cuda, cpu", "resnet, cuda, hopper",
)  # fmt: skip


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 60  # per unit
    growth_interval: int = 10
    tasks: Annotated[tuple[str, ...], runner.one_of(RECIPES)] = tuple(RECIPES)
    count_every: int = (
        10  # steps between two comparisons of thresholds, gradients, and zeros
    )


SMOKE = Config(
    steps=3, seeds=(0,), growth_interval=2, tasks=("sigmoid",), count_every=2
)


@dataclass(frozen=True)
class Arm:
    """A model, and what computes it."""

    task: str
    operators: str  # whose autocast lists: cpu or cuda
    arithmetic: str  # of half_products.ARITHMETICS
    growth_interval: int

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute as the arm's device does."""
        lists = autocast_lists.cuda_ops() if self.operators == "cuda" else nullcontext()
        with half_products.computed_by(self.arithmetic), lists:
            yield


def arms(config: Config) -> dict[str, Arm]:
    names = product(config.tasks, ("cpu", "cuda"), half_products.ARITHMETICS)
    return {", ".join(name): Arm(*name, config.growth_interval) for name in names}


def inputs() -> dict[str, str]:
    return tasks.inputs(*RECIPES)


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    batch, lr = RECIPES[arm.task]
    task = tasks.make(arm.task, seed, device, batch)
    first = thresholds.threshold(task, task.draw(), 16)
    rule = Rule(2.0**first, growth_interval=config.growth_interval)
    log, beside, overflowed_forward = (
        loop.Log(config.count_every),
        Beside(arm, task),
        [],
    )
    for step in small_runs.train(task, lr, rule, config.steps, arm.active):
        log.add(step)
        beside.add(step, counted=step.number % config.count_every == 0)
        if not isfinite(step.loss):
            overflowed_forward.append(step.number)
        tick(step.number + 1)
    return {
        **log.record(),
        **beside.record(),
        "crash_step": crash.crash_step(overflowed_forward, log.found_inf, config.steps),
        "test_loss": task.test_loss(),
    }


class Beside:
    """An arm beside the CPU, both at the arm's weights and scale."""

    def __init__(self, arm: Arm, task: Task) -> None:
        self.task = task
        self.arms = arm, replace(arm, operators="cpu", arithmetic="cpu")
        self.differing: list[int] = []
        self.rows: list[tuple[list[float], float, list[float]]] = []

    def add(self, step: loop.Step, *, counted: bool) -> None:
        """Compare one step, and its threshold and zeros if it is `counted`."""
        with self.arms[1].active():
            _, gradient = differentiate(self.task, step.batch, step.scale)
        if step.found_inf == fp16.all_finite(gradient):
            self.differing.append(step.number)
        if not counted:
            return
        bounds, zeros = [], []
        for arm in self.arms:
            with arm.active():
                near = log2(max(step.scale, 2.0**thresholds.LOWEST))
                bounds.append(thresholds.threshold(self.task, step.batch, near))
                zeros.append(activation_zeros(self.task, step.batch, step.scale))
        error = compare(gradient, step.gradient, 1.0).error
        self.rows.append((bounds, error, zeros))

    def record(self) -> Record:
        """Return the columns as `data/README.md` has them."""
        bounds, errors, zeros = series.table(self.rows)
        return {
            "differing": self.differing,
            "thresholds": bounds,
            "gradient_error": series.six_digits(errors),
            "activation_zeros": [series.six_digits(pair) for pair in zeros],
        }


def activation_zeros(task: Task, batch: Batch, scale: float) -> float:
    """Return the share of zeros among the scaled gradients of every layer's output."""
    counts: list[tuple[int, int]] = []

    def count(gradient: Tensor) -> None:
        counts.append((int((gradient == 0).sum()), gradient.numel()))

    def watch(_layer: nn.Module, _inputs: object, output: Tensor) -> None:
        output.register_hook(count)  # type: ignore[no-untyped-call]

    layers = [layer for layer in task.model.modules() if not list(layer.children())]
    handles = [layer.register_forward_hook(watch) for layer in layers]
    differentiate(task, batch, scale)
    for handle in handles:
        handle.remove()
    zero, elements = series.table(counts)
    return sum(zero) / sum(elements)  # type: ignore[no-any-return]


if __name__ == "__main__":
    raise SystemExit(runner.main("emulated_cuda"))
