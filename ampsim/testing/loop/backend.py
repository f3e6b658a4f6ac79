"""A run of a loop, with the parts that differ between torch and JAX as abstract methods."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ampsim.testing.loop.loop import Loop, blame_user_code
from ampsim.testing.loop.state import Array, State, snapshot


@dataclass(frozen=True)
class Fault:
    """An inf or a NaN, to be seeded in the backward passes of an iteration.

    Attributes:
        value: inf, -inf, or NaN; 1 seeds nothing.
        name: of the parameter in whose gradient one element, the last, has this value; "" for every
            element of all.
        only: the index of the backward pass; None for each one.
        place: "loss" seeds it in the scaled loss itself, and so in all gradients.
    """

    value: float = math.inf
    name: str = ""
    only: int | None = None
    place: Literal["", "loss"] = ""

    def __str__(self) -> str:
        where = "all gradients"
        if self.name or self.place:
            where = (
                f"one element of {self.name}'s gradient"
                if self.name
                else "the scaled loss"
            )
        number = "" if self.only is None else f", backward pass {self.only}"
        return f"{self.value} in {where}{number}"


NOTHING = Fault(1.0)


@dataclass
class Seeded:
    """A record of what a fault met.

    Attributes:
        passes: how many backward passes have reached each parameter.
        largest: the largest absolute value of each parameter's gradients in a step, -1 for none, as
            far as the framework shows it.
        early: the loop's state when the first gradient arrived, if the fault was `NOTHING`: what
            had moved by then is the forward pass's.
    """

    passes: dict[str, int] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    early: State = field(default_factory=dict)


class Run(ABC):
    """A run of a fresh loop, as far as it has come.

    Attributes:
        scaler: what ``make`` is given.
        loop: what it made.
        states: before the first batch, then after each one.
        scales: the loss scale at the start of each batch.
        found: whether an inf was found, one per update.
        verdicts: the same, for each batch.
        scalers: the scaler's state, before the first batch and after each one.
    """

    scaler: Any
    loop: Loop

    def __init__(self, wanted: type | None, scale: float, growth_interval: int) -> None:
        """Make a scaler of the class that is wanted, at this scale."""
        self.states: list[State] = []
        self.scales: list[float] = []
        self.found: list[bool] = []
        self.verdicts: list[list[bool]] = []
        self.scalers: list[State] = []

    def see(self, *, first: bool = False) -> None:
        """Look at all that the loop and the scaler carry now; before the first batch nothing is
        logged.
        """
        with blame_user_code("state or logged"):
            logged = {} if first or not self.loop.logged else self.loop.logged()
            self.states.append(snapshot(self.loop.state, self.unpack, logged))
            self.scalers.append(self.scaler_arrays())

    def overflows(self, step: int) -> bool:
        """Return whether an update in this step found an inf."""
        return any(self.verdicts[step])

    def reacts(self, scale: float) -> bool:
        """Return whether the scaler got the inf of the last batch, which began at this scale.

        A scaler with hysteresis need not lower its scale.
        """
        return self.overflows(-1) or self.scale < scale

    def backed_off(self, scale: float) -> float:
        """Return the scale of a scaler after its first overflow, at this scale."""
        return scale / 2

    def step(self, data: Any) -> None:
        """Train on what one batch holds, and note in `found` what was found."""
        self.loop.step(data)

    @staticmethod
    def seed(number: int) -> None:
        """Seed every generator of random numbers that is not in state."""
        np.random.seed(number)  # noqa: NPY002
        random.seed(number)

    @property
    @abstractmethod
    def used(self) -> bool:
        """Whether the loop has used the scaler that it was given."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """The current loss scale."""

    @abstractmethod
    def set_scale(self, scale: float) -> None:
        """Change the current loss scale and nothing else of the scaler."""

    @abstractmethod
    def scaler_state(self) -> Mapping[str, Any]:
        """Return what the scaler carries, as numbers by name."""

    def scaler_arrays(self) -> State:
        """Return the same as arrays, by names that no state has."""
        return snapshot({"scaler": self.scaler_state()}, self.unpack, {})

    @abstractmethod
    def unpack(self, value: Any) -> Any:
        """Return what the framework has of its own as an array, a mapping or a list; anything else
        as it is.
        """

    @abstractmethod
    def parameters(self) -> Mapping[str, Array]:
        """Return copies of the parameters that the loop trains, by their names in `states` where
        they have one.
        """

    @abstractmethod
    @contextmanager
    def seeding(self, fault: Fault = Fault()) -> Iterator[Seeded]:
        """Seed a fault; yield a record of the backward passes that it reached."""

    def owners(self) -> Mapping[str, str]:
        """Return, by the names of arrays, which optimizer in state they belong to, as far as that
        is known.
        """
        return {}

    def save(self) -> Any:
        """Return a checkpoint of the loop and the scaler: the user's, or all that state holds."""
        return self.loop.save() if self.loop.save else self.held(self.loop.state)

    def load(self, checkpoint: Any) -> None:
        """Go on from a checkpoint."""
        if self.loop.load:
            self.loop.load(checkpoint)
        else:
            self.hold(checkpoint)

    @abstractmethod
    def loads(self, value: Any) -> bool:
        """Return whether a value of state is in a checkpoint that a run makes itself."""

    @abstractmethod
    def held(self, names: Collection[str]) -> Any:
        """Return copies of what these names of state hold, as `hold` takes it."""

    @abstractmethod
    def hold(self, held: Any) -> None:
        """Let names of state hold what they hold in another run."""
