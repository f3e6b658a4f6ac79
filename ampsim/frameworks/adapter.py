"""What a framework's scaler looks like from outside: eight methods, one iteration at a time, in floats."""

import importlib.metadata
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Step:
    """One iteration as it went.

    Attributes:
        used: the scale in force when the gradients were made, by which the loss was multiplied.
        stepped: whether the optimizer moved the parameters; None where the adapter leaves that to its caller.
        unscaled: the gradients as the optimizer saw them; None where it was not called, or the adapter divides none.
        scale: in force after the update, by which the next loss is multiplied.
    """

    used: float
    stepped: bool | None
    unscaled: tuple[float, ...] | None
    scale: float


class Adapter(ABC):
    """One framework's scaler, driven through its own package, which its methods import when they are called.

    An exception of the package comes through as it is. Gradients and losses are values of float32.
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
        """Return the version that is installed."""
        return importlib.metadata.version(self.requirement.partition("==")[0])

    @abstractmethod
    def start(self, **constants: Any) -> None:
        """Make a fresh scaler of these `constants`; a constant that is left out takes the adapter's default."""

    @abstractmethod
    def get_scale(self) -> float:
        """Return the scale by which the next loss is multiplied."""

    @abstractmethod
    def scale_loss(self, loss: float) -> float:
        """Return the loss as the adapter scales it."""

    @abstractmethod
    def step(self, scaled: Sequence[float]) -> Step:
        """Go through one iteration with these gradients of the scaled loss: check, divide, step or skip, update.

        Args:
            scaled: as backward leaves them, already multiplied by `scale`; infinities and NaN allowed.
        """

    def state_dict(self) -> object:
        """Return what the adapter itself saves in a checkpoint, as JSON can hold it."""
        raise NotImplementedError(f"{self.name} saves nothing of its scaler")

    def load_state_dict(self, state: object) -> None:
        """Restore what `state` returned into the scaler that is running."""
        raise NotImplementedError(f"{self.name} loads nothing into its scaler")


def held_by_float16(scaled: Sequence[float]) -> None:
    """Raise NotImplementedError where a finite gradient is none in float16, in which backward would have left it."""
    if any(65520 <= abs(each) < math.inf for each in scaled):
        raise NotImplementedError(
            "its gradients are float16, in which a number of 65520 or above is infinite"
        )


def is_pinned(adapter: Adapter, version: str) -> bool:
    """Tell whether a version is the one that was read; a build's suffix, as in 2.13.0+cpu, does not count."""
    return version.partition("+")[0] == adapter.requirement.partition("==")[2]
