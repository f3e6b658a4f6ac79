"""The state of a loss scaler between updates."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Carried(Protocol):
    """Interface of a `State` and of the states of policies."""

    @property
    def scale(self) -> float:
        """Current loss scale: the factor of the next loss."""

    @property
    def newest(self) -> float:
        """The scale computed last."""

    @property
    def pending(self) -> tuple[float, ...]:
        """Scales that are computed and not yet used, oldest first."""

    @property
    def growth_tracker(self) -> int:
        """Number of finite steps counted towards the next growth."""


S = TypeVar("S", bound=Carried)


@dataclass(frozen=True, slots=True)
class State:
    """State of a loss scaler between updates.

    A checkpoint must save all of it. Instances are hashable.

    Attributes:
        scale: Current loss scale, exactly representable in ``Arithmetic.dtype``.
        growth_tracker: Number of finite steps since the last overflow or growth.
        overflow_tracker: Number of overflows without a backoff, at most ``hysteresis - 1``; an
            event of ``hysteresis_reset`` sets it to 0.
        pending: Scales that are computed and not yet used, oldest first; at most ``delay``.
        memory: Values of the rule's quirks, sorted by name; empty for a rule without quirks.
    """

    scale: float
    growth_tracker: int = 0
    overflow_tracker: int = 0
    pending: tuple[float, ...] = ()
    memory: tuple[tuple[str, float], ...] = ()

    @property
    def newest(self) -> float:
        """The scale computed last; equal to `scale` unless updates are delayed."""
        return self.pending[-1] if self.pending else self.scale

    def recall(self, name: str, default: float = 0) -> float:
        """Return the value that a quirk stored under `name`."""
        return next((value for key, value in self.memory if key == name), default)

    def remember(self, **values: float) -> "State":
        """Return a copy with values of quirks stored."""
        memory: Mapping[str, float] = {**dict(self.memory), **values}
        return dataclasses.replace(self, memory=tuple(sorted(memory.items())))
