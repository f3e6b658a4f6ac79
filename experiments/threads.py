"""How often does a loss scaler divide by a wrong scale when the optimizer runs on another thread?

One thread scales a loss, runs the backward pass, and passes the gradients to a queue. A second,
slower thread unscales, steps, and updates, as when the optimizer runs on its own thread. The
threads run freely: there are no sleeps and no forced schedules. torch's scaler is used naively,
with its methods called from both threads. ampsim's scaler uses a ticket per iteration and a depth
equal to the queue's. Every true gradient is 3, so a queued gradient reveals the scale that
multiplied it, and the unscaled gradient reveals the scale that divided it. Gradients are rounded to
fp16 before the queue, so they overflow when the scale has grown too far. There are no other
overflows.

The experiment counts backward passes whose gradients arrived finite; all tensors of a pass share
its scale. A scale can be wrong only when it changes, so a longer growth interval makes this rarer,
and its units run longer. Device: cpu.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from queue import Queue
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ampsim import Rule, replay
from ampsim.core.json_lines import Record
from experiments import runner
from experiments.training.two_threads import INIT_SCALE, MAKERS, Iteration, Naive

REPEATS = False  # ours do; torch's records depend on how the two threads happen to run
TRUE = 3.0  # every gradient element
TENSORS, ELEMENTS = 8, 4  # gradients per backward pass, and elements of each
Tick = Callable[[int], None]
DEVICES = ("cpu",)  # threads are a matter of the host


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = (
        600  # backward passes per unit, or this many growth intervals if that is more:
    )
    intervals: int = 2
    seeds: tuple[int, ...] = (0, 1, 2)  # runs; only the schedule of the threads differs
    depths: tuple[int, ...] = (1, 4)  # of the queue, and of our scaler
    growth_intervals: tuple[int, ...] = (2, 20, 200, 2000)  # an arm each


SMOKE = Config(steps=40, seeds=(0,), depths=(1, 2), growth_intervals=(2,))


class Handed(NamedTuple):
    """An item of the queue."""

    iteration: Iteration
    grads: tuple[Tensor, ...]  # scaled


@dataclass
class Counts:
    """The counts of a run. `computing` is written by one thread, everything else by the other."""

    checked: int = (
        0  # backward passes whose gradients were finite when they were handed over
    )
    wrong: int = 0  # of those, divided by another number than they were multiplied by
    twice: int = (
        0  # of the wrong ones, divided by the square of what they were multiplied by
    )
    found_inf: list[bool] = field(default_factory=list)  # per pass: whether one was
    scales: list[float] = field(
        default_factory=list
    )  # per pass: the newest scale after its update
    computing: list[str] = field(default_factory=list)  # errors there: types
    optimizing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Arm:
    """A scaler, with a queue of `depth` between the threads."""

    scaler: str  # one of MAKERS
    depth: int
    growth_interval: int


def arms(config: Config) -> Mapping[str, Arm]:
    return {
        f"{name} depth {depth} G={interval}": Arm(name, depth, interval)
        for name in MAKERS for depth in config.depths for interval in config.growth_intervals
    }  # fmt: skip


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Run one scaler at one depth and growth interval."""
    torch.set_num_threads(1)
    scaler = MAKERS[arm.scaler](arm.growth_interval, arm.depth)
    queue: Queue[Handed | None] = Queue(maxsize=arm.depth)
    counts = Counts()
    thread = threading.Thread(
        target=optimize, args=(scaler, queue, counts), name="optimizer"
    )
    thread.start()
    steps = max(config.steps, config.intervals * arm.growth_interval)
    try:
        compute(
            scaler,
            queue,
            counts,
            steps,
            lambda done: tick(done * config.steps // steps),
        )
    finally:
        queue.put(None)
        thread.join()
        scaler.close()
    return summary(counts, arm.growth_interval)


def compute(
    scaler: Naive, queue: Queue[Handed | None], counts: Counts, steps: int, tick: Tick
) -> None:
    """Scale, run the backward pass and hand over: the thread that computes."""
    params = [nn.Parameter(torch.ones(ELEMENTS)) for _ in range(TENSORS)]
    for step in range(steps):
        try:
            iteration = scaler.begin()
            loss = (TRUE * torch.stack(params)).sum()  # type: ignore[arg-type]
            scaler.scaler.scale(loss, **iteration).backward()
        except (
            RuntimeError
        ) as error:  # torch's, when update() writes the scale that autograd saved
            counts.computing.append(type(error).__name__)
            for p in params:
                p.grad = None
            continue
        grads = tuple(p.grad.half().float() for p in params if p.grad is not None)
        for p in params:
            p.grad = None
        queue.put(Handed(iteration, grads))
        tick(step + 1)


def optimize(scaler: Naive, queue: Queue[Handed | None], counts: Counts) -> None:
    """Unscale, look, step and update: the thread that owns the optimizer."""
    masters = [nn.Parameter(torch.ones(ELEMENTS)) for _ in range(TENSORS)]
    optimizer = torch.optim.Adam(masters, lr=2.0**-20, foreach=True)
    while (handed := queue.get()) is not None:
        try:
            for master, grad in zip(masters, handed.grads, strict=True):
                master.grad = grad
            before = torch.stack(handed.grads)  # a copy: unscaling writes
            scaler.unscale(optimizer, handed.iteration)
            count(
                counts,
                before,
                torch.stack([m.grad for m in masters if m.grad is not None]),
            )
            counts.scales.append(scaler.finish(optimizer, handed.iteration))
        except Exception as error:
            counts.optimizing.append(type(error).__name__)
            scaler.close()  # no update will come that the other thread may be waiting for


def count(counts: Counts, before: Tensor, after: Tensor) -> None:
    """Compare what a pass's gradients were multiplied by with what they were divided by; (tensors,
    elements) each.
    """
    found_inf = not bool(before.isfinite().all())
    counts.found_inf.append(found_inf)
    if found_inf:
        return
    multiplied, divided = before / TRUE, before / after
    wrong = bool((divided != multiplied).any())
    counts.checked += 1
    counts.wrong += wrong
    counts.twice += wrong and bool((divided == multiplied.square()).all())


def summary(counts: Counts, growth_interval: int) -> Record:
    rule = Rule(INIT_SCALE, growth_interval=growth_interval)
    expected = replay(rule, counts.found_inf).tolist()
    return {
        "passes": len(counts.found_inf),
        "checked": counts.checked,
        "wrong": counts.wrong,
        "divided_twice": counts.twice,
        "skipped": sum(counts.found_inf),
        "scale_changes": sum(a != b for a, b in pairwise(expected)),
        "lost_updates": sum(a != b for a, b in zip_longest(expected, counts.scales)),
        "errors_computing": len(counts.computing),
        "errors_optimizing": len(counts.optimizing),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("threads"))
