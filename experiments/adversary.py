"""Which histories make a loss scaler write inf or NaN into the parameters?

An adversary chooses every scaled gradient: overflow after overflow until the scale is gone, growth at the top
of float32, finite gradients near float32's largest at scales below 1, subnormal ones, overflow and clean in
turns. torch.amp.GradScaler and ours get the same histories, with no model in between, and SGD with a learning
rate so small that honest steps cannot overflow. A run whose parameters are no longer finite is lost: it is
counted, and begins anew with fresh parameters and a fresh scaler.

Device: cpu.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count, islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import series

LEARNING_RATE = 2.0**-30  # a million steps with gradients of 3e38 sum up to 3e35
TRACE = (180, 400)  # overflows, then clean steps, whose scales are kept for the figure

VALUES: dict[str, tuple[float, ...]] = {
    "one": (1.0, -1.0),
    "clean": (1.0, -3.0, 2.0**-10, 1e4),
    "huge": (1e38, -3e38, 3.4028234e38),
    "subnormal": (2.0**-149, -(2.0**-140), 3 * 2.0**-128),
    "overflow": (math.inf, -math.inf, math.nan),
}
Word = str  # one of VALUES
Coin = random.Random
DEVICES = ("cpu",)  # the parameters are four numbers


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 25_000  # per unit; times the families: 150,000 for each scaler; `make deep` gives ours a million
    seeds: tuple[int, ...] = (0,)  # of the histories
    longest: int = 320  # overflows in a row in the sweep; 16 + 149 take the scale below every float32


SMOKE = Config(steps=600, longest=16)


class Family(NamedTuple):
    """A way to hurt: the scaler it is tried on, and one word per step, without end."""

    init_scale: float
    growth_interval: int
    words: Callable[[Coin], Iterator[Word]]


def runs(coin: Coin, bad: tuple[int, int], good: tuple[int, int], word: Word = "clean") -> Iterator[Word]:
    """Yield overflows in a row, then clean steps in a row; (shortest, longest) of each."""
    while True:
        yield from ["overflow"] * coin.randint(*bad)
        yield from [word] * coin.randint(*good)


def mixed(coin: Coin, **weights: float) -> Iterator[Word]:
    """Yield words drawn one by one."""
    while True:
        yield from coin.choices(list(weights), list(weights.values()), k=1000)


FAMILIES: dict[str, Family] = {
    "long runs of overflow": Family(2.0**16, 1, lambda coin: runs(coin, (1, 400), (1, 300))),
    "growth at the top": Family(2.0**127, 1, lambda coin: mixed(coin, clean=90, huge=5, subnormal=4, overflow=1)),
    "huge gradients below scale 1": Family(2.0**-10, 50, lambda coin: mixed(coin, clean=8, huge=1, overflow=1)),
    "subnormal gradients": Family(2.0**16, 3, lambda coin: runs(coin, (1, 200), (1, 600), "subnormal")),
    "overflow and clean in turns": Family(2.0**16, 2000, lambda coin: runs(coin, (1, 1), (1, 1))),
}
SWEEP = "0, 1, 2 ... overflows, then clean"
MAKERS: dict[str, Callable[..., torch.amp.GradScaler | GradScaler]] = {
    "torch": torch.amp.GradScaler,
    "ampsim": GradScaler,
}


class Run:
    """Parameters, optimizer and scaler, from the beginning."""

    def __init__(self, maker: str, init_scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.param = nn.Parameter(torch.ones(4))
        self.grad = self.param.grad = torch.zeros(4)
        self.optimizer = torch.optim.SGD([self.param], lr=LEARNING_RATE, foreach=False)
        self.scaler = MAKERS[maker]("cpu", init_scale, growth_interval=growth_interval)
        self.scaler.scale(torch.ones(()))  # torch makes its tensors here

    def step(self, gradient: Tensor) -> bool:
        """Make one optimizer step with this scaled gradient; return whether the parameters are finite after it."""
        self.grad.copy_(gradient)
        self.scaler.step(self.optimizer)  # unscales too
        self.scaler.update()
        return math.isfinite(self.param.sum().item())


def gradients(coin: Coin, words: Iterator[Word]) -> Iterator[Tensor]:
    """Yield one value in all four elements, or among three ones if it is an overflow."""
    pool = {word: [torch.full((4,), value) for value in values] for word, values in VALUES.items()}
    for gradient in pool["overflow"]:
        gradient[1:] = 1.0
    for word in words:
        yield coin.choice(pool[word])


@dataclass(frozen=True)
class Arm:
    """A scaler against a family of histories, or against all short runs of overflows."""

    scaler: str  # one of MAKERS
    family: str  # one of FAMILIES, or SWEEP


def arms(config: Config) -> Mapping[str, Arm]:
    return {f"{maker}: {family}": Arm(maker, family) for maker in MAKERS for family in (SWEEP, *FAMILIES)}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Run one scaler against one family."""
    torch.set_num_threads(1)
    coin = Coin(seed)
    if arm.family == SWEEP:
        return sweep(arm.scaler, coin, config, tick) | trace(arm.scaler)
    family = FAMILIES[arm.family]
    history = islice(gradients(coin, family.words(coin)), config.steps)
    tally = Tally()
    current = Run(arm.scaler, family.init_scale, family.growth_interval)
    for step, gradient in enumerate(history):
        if not tally.step(current, gradient, tick):
            tally.first_corruption = step if tally.first_corruption is None else tally.first_corruption
            current = Run(arm.scaler, family.init_scale, family.growth_interval)
    return asdict(tally)


@dataclass
class Tally:
    """The counts of one unit."""

    steps: int = 0
    overflows: int = 0  # gradients that were not finite
    corruptions: int = 0  # runs lost
    first_corruption: int | None = None
    lowest_scale: float = math.inf
    highest_scale: float = 0.0

    def step(self, run: Run, gradient: Tensor, tick: Callable[[int], None]) -> bool:
        """Make one step of a run; return whether it goes on."""
        fine = run.step(gradient)
        scale = run.scaler.get_scale()
        self.lowest_scale, self.highest_scale = min(self.lowest_scale, scale), max(self.highest_scale, scale)
        self.steps += 1
        self.overflows += not math.isfinite(gradient[0])
        self.corruptions += not fine
        tick(self.steps)
        return fine


def sweep(maker: str, coin: Coin, config: Config, tick: Callable[[int], None]) -> Record:
    """Start fresh runs: n overflows, then ten steps with scaled gradients of 1 or -1, for every n, over and over.

    Here the first corruption is counted within its run, so that it is the fewest overflows that lead there.
    """
    tally, clean_steps = Tally(), 10
    for episode in count():
        overflows = episode % (config.longest + 1)
        words = iter(["overflow"] * overflows + ["one"] * clean_steps)
        current = Run(maker)
        for step, gradient in enumerate(gradients(coin, words)):
            if tally.steps == config.steps:
                return asdict(tally)
            if not tally.step(current, gradient, tick):
                tally.first_corruption = step if tally.first_corruption is None else min(tally.first_corruption, step)
                break
    raise AssertionError("count() does not end")


def trace(maker: str) -> Record:
    """Return the scales of one long fall and what comes after, with growth after every clean step."""
    overflows, clean = TRACE
    current = Run(maker, growth_interval=1)
    scales, died = [current.scaler.get_scale()], None
    for step in range(overflows + clean):
        value = math.inf if step < overflows else 1.0
        fine = current.step(torch.full((4,), value))
        scales.append(current.scaler.get_scale())
        if not fine:
            died = step
            break
    return {"trace": series.changes(scales), "trace_steps": len(scales), "trace_died": died}


if __name__ == "__main__":
    raise SystemExit(runner.main("adversary"))
