"""Versions of the loss scale, and the order of streams on an accelerator.

What one stream writes and another one reads is ordered by an event: the writer records it behind
its work, and the reader's stream waits for it before its own work. The host waits only where it
reads a number. Events and streams are `torch.Event` and `torch.accelerator`, so this holds for any
accelerator that torch knows. The CPU has no streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ampsim.core import machine
from ampsim.core.machine import Rule, State


def has_streams(device: torch.device) -> bool:
    """Return whether a device is this process's accelerator, whose streams have an order."""
    if device.type == "cpu" or not torch.accelerator.is_available():
        return False
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


def record_event(device: torch.device) -> torch.Event | None:
    """Record an event behind the work of a device's current stream; None on the CPU."""
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    stream = torch.accelerator.current_stream(device)
    event.record(stream)
    return event


def wait_for(event: torch.Event | None, device: torch.device) -> None:
    """Order later work of a device's current stream behind an event; the host does not wait."""
    if event is not None:
        stream = torch.accelerator.current_stream(device)
        stream.wait_event(event)


def use(tensor: Tensor, ready: torch.Event | None) -> Tensor:
    """Return a tensor of another stream for use on the current one."""
    if ready is not None:
        wait_for(ready, tensor.device)
        # Else the allocator could reuse the memory, if its last reference goes while this stream
        # still reads it.
        stream = torch.accelerator.current_stream(tensor.device)
        tensor.record_stream(stream)
    return tensor


@dataclass(frozen=True, eq=False)
class Flag:
    """Whether a gradient on one device was inf or NaN.

    A tensor of shape (), float32, that is not written again.
    """

    found_inf: Tensor
    ready: torch.Event | None

    @classmethod
    def of(cls, found_inf: Tensor) -> Self:
        """Return the flag that the current stream has just computed."""
        return cls(found_inf, record_event(found_inf.device))

    def on(self, device: torch.device) -> Tensor:
        """Return the flag on a device, for its current stream; the host does not wait."""
        found_inf = use(self.found_inf, self.ready)
        return found_inf.to(device, non_blocking=True)

    def __bool__(self) -> bool:
        """Read the flag; waits for the device."""
        found_inf = use(self.found_inf, self.ready)
        return bool(found_inf.item())


@dataclass(frozen=True, eq=False)
class HostVersion:
    """The state after some updates as numbers, for a scaler or losses on the CPU."""

    state: State

    @property
    def may_be_below_one(self) -> bool:
        """Whether the scale may be below 1, so that a division may overflow."""
        return self.state.scale < 1.0

    def scale_on(self, device: torch.device) -> Tensor:
        """Return the scale, shape (), float32, on a device."""
        return torch.full((), self.state.scale, dtype=torch.float32, device=device)

    def multiply(self, outputs: Tensor) -> Tensor:
        """Return outputs times the scale; a Python number needs no tensor of its own."""
        return outputs * self.state.scale

    def inverse_on(self, device: torch.device) -> Tensor:
        """Return float32(1 / float64(scale)), shape (), on a device."""
        inverse = 1.0 / self.state.scale
        return torch.full((), inverse, dtype=torch.float32, device=device)

    def read(self) -> State:
        """Return the state as numbers."""
        return self.state

    def next(self, rule: Rule, flags: Sequence[Flag]) -> "HostVersion":
        """Return the version after an update; waits for flags of other devices."""
        state = machine.update(rule, self.state, any(flags))
        return HostVersion(state)

    def override(self, rule: Rule, scale: float) -> "HostVersion":
        """Return the version after the scale was set by hand."""
        state = machine.override(rule, self.state, scale)
        return HostVersion(state)


@dataclass(frozen=True, eq=False)
class DeviceVersion:
    """The state after some updates as two tensors of an accelerator.

    No tensor of a version is written again, because queued work of any stream may still read it. An
    update makes new ones, and the host does not wait for it.
    """

    scale: Tensor  # shape (), float32
    growth_tracker: Tensor  # shape (), int32
    ready: torch.Event | None  # recorded behind the work that made both

    may_be_below_one = True  # to know it the host would have to wait

    @classmethod
    def of(cls, state: State, device: torch.device) -> "DeviceVersion":
        """Return the version of a state, made on the current stream."""
        scale = torch.full((), state.scale, dtype=torch.float32, device=device)
        tracker = torch.full((), state.growth_tracker, dtype=torch.int32, device=device)
        return cls(scale, tracker, record_event(device))

    def scale_on(self, device: torch.device) -> Tensor:
        """Return the scale, shape (), float32, on a device."""
        scale = use(self.scale, self.ready)
        return scale.to(device, non_blocking=True)

    def multiply(self, outputs: Tensor) -> Tensor:
        """Return outputs times the scale."""
        return outputs * self.scale_on(outputs.device)

    def inverse_on(self, device: torch.device) -> Tensor:
        """Return float32(1 / float64(scale)), shape (), on a device."""
        scale = self.scale_on(device).double()
        return scale.reciprocal().float()

    def read(self) -> State:
        """Return the state as numbers; waits for the device."""
        scale = use(self.scale, self.ready)
        tracker = use(self.growth_tracker, self.ready)
        return State(scale.item(), int(tracker.item()))

    @torch.no_grad()
    def next(self, rule: Rule, flags: Sequence[Flag]) -> "DeviceVersion":
        """Return the version after an update."""
        scale = use(self.scale, self.ready).clone()
        home = scale.device
        found_inf = torch.stack([flag.on(home) for flag in flags]).amax()
        # torch's kernel grows if the tracker equals the interval. Of an interval that was set below
        # the tracker the next finite step grows, as `Rule` says with growth_test=">=".
        tracker = use(self.growth_tracker, self.ready)
        tracker = tracker.clamp(max=rule.growth_interval - 1)
        torch._amp_update_scale_(
            scale,
            tracker,
            found_inf,
            rule.growth_factor,
            rule.backoff_factor,
            rule.growth_interval,
        )
        bounded = scale.clamp(rule.min_scale, rule.max_scale)
        return DeviceVersion(bounded, tracker, record_event(home))

    def override(self, rule: Rule, scale: float) -> "DeviceVersion":
        """Return the version after the scale was set by hand."""
        made = torch.full_like(self.scale, scale)
        tracker = use(self.growth_tracker, self.ready)
        ready = record_event(made.device)
        return DeviceVersion(made, tracker, ready)


Version = HostVersion | DeviceVersion
