"""How many gradients does a loss scaler unscale by a wrong scale when the optimizer runs on another thread?

One thread computes: it scales a loss, runs the backward pass and hands the gradients over through a queue.
Another unscales, steps and updates; it is the slower of the two, as it is where the optimizer has been moved
to a thread of its own. Nothing sleeps and nothing is forced: threads run as they run. torch's
scaler is used as a naive user would, its methods called from both; ours with a ticket an iteration and depth
equal to the queue's. Every true gradient is 3, so a handed-over gradient tells the scale it was multiplied
by, and the unscaled one the scale it was divided by. Gradients are rounded to fp16 on the way, so they
overflow when the scale has grown too far; a seeded coin makes more overflows, each in one tensor.

What is counted are gradient tensors; all tensors of one backward pass share its scale, so the number of
passes is given too. Device: cpu.
"""

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from queue import Queue
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from ampsim import Rule, replay
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner

REPEATS = False  # ours do; torch's records depend on how the two threads happen to run
TRUE = 3.0  # every gradient element
ELEMENTS = 4  # a tensor
Iteration = dict[str, Any]  # our ticket, or nothing
Tick = Callable[[int], None]
INIT_SCALE = 2.0**12
DEVICES = ("cpu",)  # threads are a matter of the host


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 600  # backward passes a unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of the overflows
    tensors: int = 250  # gradients a backward pass
    depths: tuple[int, ...] = (1, 2, 4)  # of the queue, and of our scaler
    growth_interval: int = 2  # short, so that the scale changes often
    overflow_share: Annotated[float, runner.SHARE] = (
        0.1  # of the passes, beside those that the scale itself makes overflow
    )


SMOKE = Config(steps=40, seeds=(0,), tensors=5, depths=(1, 2))


class Naive:
    """torch's scaler: whichever scale it holds when it is asked."""

    def __init__(self, growth_interval: int, depth: int) -> None:
        self.scaler: Any = torch.amp.GradScaler("cpu", INIT_SCALE, growth_interval=growth_interval)

    def begin(self) -> Iteration:
        """Return what each call about one iteration is given, and what travels with its gradients."""
        return {}

    def unscale(self, optimizer: torch.optim.Optimizer, iteration: Iteration) -> None:
        self.scaler.unscale_(optimizer, **iteration)

    def finish(self, optimizer: torch.optim.Optimizer, iteration: Iteration) -> float:
        """Step and update; return the newest scale."""
        self.scaler.step(optimizer, **iteration)
        self.scaler.update(**iteration)
        return float(self.scaler.get_scale())

    def close(self) -> None:
        """Do nothing: no thread waits for it."""


class Tickets(Naive):
    """Our scaler: the ticket travels with the gradients."""

    def __init__(self, growth_interval: int, depth: int) -> None:
        self.scaler = GradScaler("cpu", INIT_SCALE, growth_interval=growth_interval, depth=depth)

    def begin(self) -> Iteration:
        return {"ticket": self.scaler.begin()}

    def close(self) -> None:
        self.scaler.close()


MAKERS: dict[str, type[Naive]] = {"torch": Naive, "ampsim": Tickets}


class Handed(NamedTuple):
    """An item of the queue."""

    iteration: Iteration
    grads: tuple[Tensor, ...]  # scaled


@dataclass
class Counts:
    """The counts of a run. `computing` is written by one thread, everything else by the other."""

    passes: int = 0  # backward passes whose gradients arrived
    checked: int = 0  # gradient tensors, finite when handed over
    wrong: int = 0  # of those, divided by another number than they were multiplied by
    twice: int = 0  # of the wrong ones, divided by the square of what they were multiplied by
    overflowed: int = 0  # gradient tensors that were not finite
    found_inf: list[bool] = field(default_factory=list)  # per pass: whether one was
    scales: list[float] = field(default_factory=list)  # per pass: the newest scale after its update
    computing: list[str] = field(default_factory=list)  # errors there: types
    optimizing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Arm:
    """A scaler, with a queue of `depth` between the threads."""

    scaler: str  # one of MAKERS
    depth: int


def arms(config: Config) -> Mapping[str, Arm]:
    return {f"{name} depth {depth}": Arm(name, depth) for name in MAKERS for depth in config.depths}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Run one scaler at one depth."""
    torch.set_num_threads(1)
    scaler = MAKERS[arm.scaler](config.growth_interval, arm.depth)
    queue: Queue[Handed | None] = Queue(maxsize=arm.depth)
    counts = Counts()
    thread = threading.Thread(target=optimize, args=(scaler, queue, counts, config.tensors), name="optimizer")
    thread.start()
    try:
        compute(scaler, queue, counts, config, random.Random(seed), tick)  # noqa: S311 - not a secret
    finally:
        queue.put(None)
        thread.join()
        scaler.close()
    return summary(counts, config)


def compute(
    scaler: Naive, queue: Queue[Handed | None], counts: Counts, config: Config, coin: random.Random, tick: Tick
) -> None:
    """Scale, run the backward pass and hand over: the thread that computes."""
    params = [nn.Parameter(torch.ones(ELEMENTS)) for _ in range(config.tensors)]
    for step in range(config.steps):
        try:
            iteration = scaler.begin()
            loss = (TRUE * torch.stack(params)).sum()  # type: ignore[arg-type]
            scaler.scaler.scale(loss, **iteration).backward()
        except RuntimeError as error:  # torch's, when update() writes the scale that autograd saved
            counts.computing.append(type(error).__name__)
            for p in params:
                p.grad = None
            continue
        grads = tuple(p.grad.half().float() for p in params if p.grad is not None)
        for p in params:
            p.grad = None
        if coin.random() < config.overflow_share:
            grads[coin.randrange(len(grads))][0] = float("inf")
        queue.put(Handed(iteration, grads))
        tick(step + 1)


def optimize(scaler: Naive, queue: Queue[Handed | None], counts: Counts, tensors: int) -> None:
    """Unscale, look, step and update: the thread that owns the optimizer."""
    masters = [nn.Parameter(torch.ones(ELEMENTS)) for _ in range(tensors)]
    optimizer = torch.optim.Adam(masters, lr=2.0**-20, foreach=True)
    while (handed := queue.get()) is not None:
        try:
            for master, grad in zip(masters, handed.grads, strict=True):
                master.grad = grad
            before = torch.stack(handed.grads)  # a copy: unscaling writes
            scaler.unscale(optimizer, handed.iteration)
            count(counts, before, torch.stack([m.grad for m in masters if m.grad is not None]))
            counts.scales.append(scaler.finish(optimizer, handed.iteration))
        except Exception as error:
            counts.optimizing.append(type(error).__name__)
            scaler.close()  # no update will come that the other thread may be waiting for


def count(counts: Counts, before: Tensor, after: Tensor) -> None:
    """Compare what the gradients were multiplied by with what they were divided by; (tensors, elements) each."""
    finite = before.isfinite().all(dim=1)
    multiplied, divided = before[finite] / TRUE, before[finite] / after[finite]
    wrong = (divided != multiplied).any(dim=1)
    counts.passes += 1
    counts.checked += int(finite.sum())
    counts.wrong += int(wrong.sum())
    counts.twice += int((divided == multiplied.square())[wrong].all(dim=1).sum())
    counts.overflowed += int((~finite).sum())
    counts.found_inf.append(not bool(finite.all()))


def summary(counts: Counts, config: Config) -> Record:
    rule = Rule(INIT_SCALE, growth_interval=config.growth_interval)
    expected = replay(rule, counts.found_inf).tolist()
    return {
        "passes": counts.passes,
        "checked": counts.checked,
        "wrong": counts.wrong,
        "divided_twice": counts.twice,
        "overflowed": counts.overflowed,
        "skipped": sum(counts.found_inf),
        "scale_changes": sum(a != b for a, b in pairwise(expected)),
        "lost_updates": sum(a != b for a, b in zip_longest(expected, counts.scales)),
        "errors_computing": len(counts.computing),
        "errors_optimizing": len(counts.optimizing),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("threads"))
