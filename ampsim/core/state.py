"""What a loss scaler carries from update to update."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Carried(Protocol):
    """Any state: a `State`, or that of a policy."""

    @property
    def scale(self) -> float:
        """In force: what the next loss is multiplied by."""

    @property
    def newest(self) -> float:
        """Computed last."""

    @property
    def pending(self) -> tuple[float, ...]:
        """Computed and not yet in force, oldest first."""

    @property
    def growth_tracker(self) -> int:
        """Clean steps counted towards the next growth."""


S = TypeVar("S", bound=Carried)


@dataclass(frozen=True, slots=True)
class State:
    """All that goes from update to update, and that a checkpoint must hold. Hashable.

    Attributes:
        scale: in force: what the next loss is multiplied by. Exactly representable in ``Arithmetic.dtype``.
        growth_tracker: clean steps since the last overflow or growth; an overflow and a growth reset it to 0.
        overflow_tracker: overflows let pass without a backoff, at most ``hysteresis - 1``; ``hysteresis_reset`` resets
            it.
        pending: scales already computed and not yet in force, oldest first; at most ``delay`` of them.
        memory: what the rule's quirks remember, sorted by name; empty for a rule without quirks.
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
        """Return what a quirk remembered under `name`."""
        return next((value for key, value in self.memory if key == name), default)

    def remember(self, **values: float) -> "State":
        """Return this state with quirks' values stored."""
        memory: Mapping[str, float] = {**dict(self.memory), **values}
        return dataclasses.replace(self, memory=tuple(sorted(memory.items())))
