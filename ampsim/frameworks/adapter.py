"""The interface of an adapter: seven methods, one iteration at a time, in floats."""

import importlib.metadata
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Step:
    """Observed values of one iteration.

    Attributes:
        used: Loss scale of the iteration.
        stepped: Whether the optimizer changed the parameters; None if the framework leaves the step
            to its caller.
        unscaled: Gradients as the optimizer saw them; None if it was not called, or the framework
            does not divide.
        scale: Loss scale of the next iteration.
    """

    used: float
    stepped: bool | None
    unscaled: tuple[float, ...] | None
    scale: float


class Adapter(ABC):
    """Base class of adapters; the methods import the framework's package when they are called.

    Exceptions of the package are not caught. Gradients and losses are float32 values.
    """

    name: ClassVar[str]
    """As `ampsim.frameworks.REGISTRY` has it."""
    requirement: ClassVar[str]
    """The package and the version that was read: ``keras==3.15.1``."""
    target: ClassVar[str]
    """Dotted name of the class that is driven."""
    source: ClassVar[str]
    """Permanent link to that class, in that version."""
    dialect: ClassVar[str | None] = None
    """The dialect of `ampsim.core.dialects` that it should equal."""
    constants: ClassVar[Mapping[str, str]]
    """What `start` takes -> the dialect's name of it. What it does not name, the adapter fixes."""
    options: ClassVar[Mapping[str, object]] = {}
    """Parameters of the dialect that the way of driving the adapter fixes, such as ``{"jit": True}``."""
    deviations: ClassVar[Mapping[str, str]] = {}
    """Check -> why the adapter does otherwise on purpose, and where it says so: no excuse at the ends of float32."""
    same_class: ClassVar[str] = ""
    """The adapter that drives the same class in another way; "" where there is none, or this one comes first."""
    patched: ClassVar[str] = ""
    """What was changed around the scaler so that it runs on a CPU, and why; never the scaler itself."""

    def version(self) -> str:
        """Return the installed version."""
        return importlib.metadata.version(self.requirement.partition("==")[0])

    @abstractmethod
    def start(self, **constants: Any) -> None:
        """Create a scaler with these `constants`; others keep the framework's defaults."""

    @abstractmethod
    def get_scale(self) -> float:
        """Return the loss scale of the next loss."""

    @abstractmethod
    def scale_loss(self, loss: float) -> float:
        """Return the scaled loss."""

    @abstractmethod
    def step(self, scaled: Sequence[float]) -> Step:
        """Run one iteration with these gradients: check, divide, step or skip, update.

        Args:
            scaled: Scaled gradients, as after a backward pass; may be inf or NaN.

        Returns:
            Step: The observed values.
        """

    def state_dict(self) -> object:
        """Return the framework's own checkpoint of the scaler as JSON data."""
        raise NotImplementedError(f"{self.name} does not save its scaler")

    def load_state_dict(self, state: object) -> None:
        """Load the result of `state_dict` into the current scaler."""
        raise NotImplementedError(f"{self.name} does not load its scaler")


def require_float16_range(scaled: Sequence[float]) -> None:
    """Raise NotImplementedError if a finite gradient overflows in float16, the dtype of the
    gradients.
    """
    if any(65520 <= abs(each) < math.inf for each in scaled):
        raise NotImplementedError(
            "its gradients are float16, where 65520 and above overflow"
        )


def is_pinned(adapter: Adapter, version: str) -> bool:
    """Return whether a version is the pinned one; build suffixes, as in 2.13.0+cpu, are ignored."""
    return version.partition("+")[0] == adapter.requirement.partition("==")[2]
