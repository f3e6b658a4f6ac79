"""What the cases of `experiments.theory` share: their settings, and one number predicted and measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, NamedTuple, ParamSpec

from numpy.random import Generator

from ampsim.core.machine import Arithmetic
from experiments import runner

P = ParamSpec("P")
EXACT = 1e-12  # relative
THEOREMS = {**{f"T{number}": number for number in range(1, 11)}, "T3 b": 3}
WIDE = Arithmetic(dtype="float64")  # room for 2000 bits of scale


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 4000  # of a run under random thresholds, after it has settled
    seeds: tuple[int, ...] = (0,)  # of whatever is random
    runs: int = 1000  # side by side under random thresholds
    settling: int = 20  # growth intervals that such runs settle for
    histories: int = 100_000  # that T1 is held against
    elements: int = 4_000_000  # that T9 draws


@dataclass(frozen=True)
class Arm:
    """One case of a theorem."""

    theorem: str
    parameters: str  # in words; two numbers are growth and backoff factor

    @property
    def name(self) -> str:
        """The arm's name in the data, which also seeds its random numbers."""
        return f"{self.theorem}: {self.parameters}"

    @property
    def number(self) -> int:
        """The theorem's, without T and the letter of a corollary."""
        return THEOREMS[self.theorem]


class Held(NamedTuple):
    """One number, predicted and measured."""

    name: str
    predicted: float
    measured: float
    tolerance: float = EXACT  # of the error

    @property
    def error(self) -> float:
        """Relative, and absolute where 0 is predicted."""
        return abs(self.measured - self.predicted) / (abs(self.predicted) or 1.0)


Case = Callable[[Config, Generator], list[Held]]


def case_of(hold: Callable[Concatenate[Config, Generator, P], list[Held]]) -> Callable[P, Case]:
    """Return a function that makes cases: called with the parameters of `hold`, it waits for settings and chance."""

    def make(*args: P.args, **options: P.kwargs) -> Case:
        return lambda config, rng: hold(config, rng, *args, **options)

    return make
