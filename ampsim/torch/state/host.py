"""A state on the host: the reference machine's own, so that there is nothing to keep in step with the reference."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ampsim.core.machine import Rule, State, join, override, update
from ampsim.torch.state.version import M, Outcome, S, Version


@dataclass(frozen=True, eq=False)
class HostScale(Version[M, S]):
    """A scale on the host; as a tensor it is made for each device that asks, and kept for the CPU.

    On a device it is filled in by the stream that asks: a copy from the host would wait for the device, and what is
    kept would need an event for other streams.
    """

    state: State
    _tensors: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)
    _inverse: list[Tensor] = field(
        default_factory=list, repr=False
    )  # on the CPU, once it was asked for
    in_place: ClassVar[bool] = False

    def scale_on(self, device: torch.device) -> Tensor:
        if device.type != "cpu":
            return _filled(self.state.scale, device)
        tensor = self._tensors.get(device)
        if tensor is None:  # two threads may both make it; the first one stored is kept
            tensor = torch.tensor(self.state.scale, dtype=torch.float32, device=device)
            if _is_ordinary(tensor):
                tensor = self._tensors.setdefault(device, tensor)
        return tensor

    def inverse_on(self, device: torch.device) -> Tensor:
        if self._inverse and device.type == "cpu":
            return self._inverse[0]
        scale = self.state.scale
        inverse = _filled(1.0 / scale if scale != 0 else math.copysign(math.inf, scale), device)
        if device.type == "cpu" and _is_ordinary(inverse):
            self._inverse.append(inverse)
        return inverse

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def may_be_below_one(self) -> bool:
        return not self.state.scale >= 1.0

    def read(self) -> State:
        return self.state


def _is_ordinary(tensor: Tensor) -> bool:
    """Return whether a tensor is usable after the mode in which it was created (inference, fake tensors)."""
    return type(tensor) is Tensor and not tensor.is_inference()


def _filled(number: float, device: torch.device) -> Tensor:
    """Return a number as float32, shape (), without a wait; what float32 does not hold is infinite."""
    rounded = torch.tensor(number, dtype=torch.float32, device="cpu")
    return (
        rounded
        if device.type == "cpu"
        else torch.full((), rounded.item(), dtype=torch.float32, device=device)
    )


@dataclass(frozen=True, eq=False)
class HostVersion(HostScale[Rule, State]):
    """The version of a scaler on the CPU."""

    @classmethod
    def start(cls, states: tuple[State, ...], rule: Rule, device: torch.device) -> tuple[Self, ...]:
        """Make a version of each state, its scale rounded as the rule's arithmetic rounds."""
        return tuple(
            cls(replace(state, scale=rule.arithmetic.round(state.scale))) for state in states
        )

    def next(self, rule: Rule, outcome: Outcome) -> Self:
        return type(self)(update(rule, self.state, any_found(outcome)))

    def override(self, rule: Rule, new_scale: float | Tensor) -> Self:
        return type(self)(override(rule, self.state, float(new_scale)))


def any_found(outcome: Outcome) -> bool:
    """Return whether any gradient was inf or NaN; waits for the flags."""
    return join(flag.item() for flag in outcome.flags)
