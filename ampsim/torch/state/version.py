"""What a scaler asks of its state: one protocol that states on the host, on a device, and of policies keep.

A version is the state after some number of updates. It is never written after it was made, because autograd may
have saved its scale for a backward pass that is still running; `StaticVersion` is the one exception.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ampsim.torch.gradients.collect import Groups

M = TypeVar("M", contravariant=True)  # what the next version is made by: a Rule or a Policy
S = TypeVar("S")  # what a version is made of: a State or a PolicyState


@dataclass(frozen=True)
class DeviceObservation:
    """The sight of one optimizer's gradients beside found_inf, on their device; see `policies.Observation`."""

    amax: Tensor  # (), largest magnitude, unscaled
    at_top: Tensor | None  # (), elements at the format's largest number or beyond
    elements: int


class Outcome(NamedTuple):
    """The findings of an iteration's optimizers in their gradients."""

    flags: list[Tensor]  # found_inf of each: (), float32, on any device
    observed: Sequence[DeviceObservation] = ()
    is_async: bool = (
        True  # False: the next iteration uses the scale that this update makes, whatever the depth
    )


class Version(Protocol[M, S]):
    """The state after some updates, and the way to the next one. What is written here holds of a rule on the host."""

    in_place: ClassVar[bool]
    """Whether updates write this version instead of making another."""
    observes: ClassVar[bool] = False
    """Whether `observe` reads anything."""

    @classmethod
    def start(cls, states: tuple[S, ...], rule: M, device: torch.device) -> tuple[Self, ...]:
        """Make the versions that the next tickets carry, oldest first, from what `saved` returned."""

    def restored(self, states: tuple[S, ...], rule: M) -> tuple[Self, ...]:
        """Make what `start` makes, to take this version's place."""
        return self.start(states, rule, self.device)

    def scale_on(self, device: torch.device) -> Tensor:
        """Return the scale, shape (), float32, on `device`; not to be written."""

    def inverse_on(self, device: torch.device) -> Tensor:
        """Return float32(1 / float64(scale)), shape (); inf for scales below 2^-128, as in torch."""

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of tensors from other streams until this stream is done with them, though they are freed."""
        return  # where there are no streams

    @property
    def device(self) -> torch.device:
        """Where the state lives."""

    @property
    def may_be_below_one(self) -> bool:
        """Whether the scale may be below 1, where a finite gradient may leave its format once unscaled."""

    def read(self) -> Any:  # anything with scale and growth_tracker
        """Return the `State` on the host. Waits for the device."""

    def number(self) -> float:
        """Return the scale alone; on a device in one copy. Waits for the device."""
        scale: float = self.read().scale
        return scale

    def saved(self) -> S:
        """Return what `start` makes this version of again. Waits for the device."""
        state: S = self.read()
        return state

    def observe(self, rule: M, groups: Groups) -> DeviceObservation | None:
        """Read of gradients that are still scaled what `next` needs beside found_inf; None if that is nothing."""
        return None

    def next(self, rule: M, outcome: Outcome) -> "Version[M, S]":
        """Make the version after an update; any nonzero flag is an overflow, NaN too, as in torch."""

    def override(self, rule: M, new_scale: float | Tensor) -> "Version[M, S]":
        """Make the version after the scale was set by hand."""


AnyVersion = Version[Any, Any]  # of a scaler, which does not ask by what its versions are made
