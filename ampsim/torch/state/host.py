"""A state on the host: the reference machine's own, so that there is nothing to keep in step with the reference."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ampsim.core.machine import Rule, State, override, update
from ampsim.torch.gradients.unscale import Groups
from ampsim.torch.state.version import Outcome


@dataclass(frozen=True, eq=False)
class HostScale:
    """A scale on the host; as a tensor it is made for each device that asks."""

    state: State
    _tensors: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)
    in_place: ClassVar[bool] = False

    def scale_on(self, device: torch.device) -> Tensor:
        """Return the scale, shape (), float32, on `device`; not to be written."""
        tensor = self._tensors.get(device)
        if tensor is None:  # two threads may both make it; the first one stored is kept
            made = torch.tensor(self.state.scale, dtype=torch.float32, device=device)
            tensor = self._tensors.setdefault(device, made)
        return tensor

    def inverse_on(self, device: torch.device) -> Tensor:
        """Return float32(1 / float64(scale)), shape (); inf for scales below 2^-128, as in torch."""
        scale = self.state.scale
        inverse = 1.0 / scale if scale != 0 else math.copysign(math.inf, scale)
        return torch.tensor(inverse, dtype=torch.float32, device=device)

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def may_be_below_one(self) -> bool:
        """Whether the scale is below 1."""
        return not self.state.scale >= 1.0

    def read(self) -> State:
        """Return the state."""
        return self.state


@dataclass(frozen=True, eq=False)
class HostVersion(HostScale):
    """The version of a scaler on the CPU."""

    @classmethod
    def start(cls, states: tuple[State, ...], rule: Rule, device: torch.device) -> tuple[Self, ...]:
        """Make a version of each state, its scale rounded as the rule's arithmetic rounds."""
        return tuple(cls(replace(state, scale=rule.arithmetic.round(state.scale))) for state in states)

    def restored(self, states: tuple[State, ...], rule: Rule) -> tuple[Self, ...]:
        """Make the versions of a loaded state dict."""
        return self.start(states, rule, self.device)

    def saved(self) -> State:
        """Return the state."""
        return self.state

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Do nothing: on the host there are no streams."""

    def observe(self, rule: Rule, groups: Groups) -> None:
        """Do nothing: a rule needs found_inf alone."""

    def next(self, rule: Rule, outcome: Outcome) -> Self:
        """Make the version after an update; waits for flags on other devices."""
        return type(self)(update(rule, self.state, any_found(outcome)))

    def override(self, rule: Rule, new_scale: float | Tensor) -> Self:
        """Make the version after the scale was set by hand."""
        return type(self)(override(rule, self.state, float(new_scale)))


def any_found(outcome: Outcome) -> bool:
    """Tell whether any gradient was inf or NaN; waits for the flags."""
    return sum(flag.item() for flag in outcome.flags) != 0  # NaN != 0, as in torch
