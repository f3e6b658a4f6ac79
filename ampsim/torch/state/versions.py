"""One version of the scaler's state, where it lives, and how the next one is made.

On the CPU a version is the reference machine's own `State`, and `ampsim.core.machine.update` makes the next:
there is nothing to keep in step with the reference. On other devices, and for ``exact_torch=True``, the state is
two scalar tensors and torch's own kernel makes the next, so that no update waits for the device. Either way a
version is never written after it was made: autograd may have saved its scale for a backward pass that is still
running.

A CUDA graph replays one iteration on the same addresses, so what its update writes must be what its `scale`
reads. `StaticVersion` is that exception: every update writes the same two tensors, as torch's own scaler does.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ampsim.core.machine import Rule, State, override, update


@dataclass(frozen=True, eq=False)
class HostVersion:
    """A state on the host; its scale as a tensor is made for each device that asks."""

    state: State
    _tensors: dict[torch.device, Tensor] = field(default_factory=dict)

    def scale_on(self, device: torch.device) -> Tensor:
        """The scale, shape (), float32, on `device`; not to be written."""
        tensor = self._tensors.get(device)
        if tensor is None:  # two threads may both make it; the first one stored is kept
            made = torch.tensor(self.state.scale, dtype=torch.float32, device=device)
            tensor = self._tensors.setdefault(device, made)
        return tensor

    def inverse_on(self, device: torch.device) -> Tensor:
        """float32(1 / float64(scale)), shape (); inf for scales below 2^-128, as in torch."""
        scale = self.state.scale
        inverse = 1.0 / scale if scale != 0 else math.copysign(math.inf, scale)
        return torch.tensor(inverse, dtype=torch.float32, device=device)

    def divide(self, tensor: Tensor) -> Tensor:
        """A tensor over the scale."""
        return tensor / self.scale_on(tensor.device)

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Nothing to be done on the host."""

    @property
    def device(self) -> torch.device:
        """Where the state lives."""
        return torch.device("cpu")

    @property
    def may_be_below_one(self) -> bool:
        """Whether a finite scaled gradient may be too large for its format once unscaled."""
        return not self.state.scale >= 1.0

    def read(self) -> State:
        """The state."""
        return self.state

    def next(self, rule: Rule, found_inf: list[Tensor]) -> "HostVersion":
        """The version after an update; any nonzero flag (shape (), float32) is an overflow."""
        found = sum(flag.item() for flag in found_inf) != 0  # NaN != 0, as in torch
        return HostVersion(update(rule, self.state, found))

    def override(self, rule: Rule, new_scale: float | Tensor) -> "HostVersion":
        return HostVersion(override(rule, self.state, float(new_scale)))


@dataclass(frozen=True, eq=False)
class DeviceVersion:
    """A state on a device: nothing here waits for it except `read`."""

    scale: Tensor  # (), float32, never written again
    growth_tracker: Tensor  # (), int32, never written again
    ready: Any = None  # torch.cuda.Event recorded when the two were made, or None
    _copies: dict[torch.device, "DeviceVersion"] = field(default_factory=dict)

    def scale_on(self, device: torch.device) -> Tensor:
        """The scale, shape (), float32, on `device`; not to be written."""
        self._wait()
        if device == self.scale.device:
            return self.scale
        copy = self._copies.get(device)
        if copy is None:  # with an event of its own: other streams may read the copy too
            tensor = self.scale.to(device, non_blocking=True)
            copy = self._copies.setdefault(device, DeviceVersion(tensor, tensor, event_on(device)))
        copy._wait()  # noqa: SLF001
        return copy.scale

    def inverse_on(self, device: torch.device) -> Tensor:
        """float32(1 / float64(scale)), shape ()."""
        return self.scale_on(device).double().reciprocal().float()

    def divide(self, tensor: Tensor) -> Tensor:
        """A tensor over the scale."""
        return tensor / self.scale_on(tensor.device)

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of tensors from other streams until this stream is done with them, though they are freed."""
        if self.ready is not None:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))

    @property
    def device(self) -> torch.device:
        """Where the state lives."""
        return self.scale.device

    @property
    def may_be_below_one(self) -> bool:
        """Always: to know would be to wait for the device."""
        return True

    def read(self) -> State:
        """The state on the host. Waits for the device."""
        self._wait()
        return State(float(self.scale.item()), int(self.growth_tracker.item()))

    def next(self, rule: Rule, found_inf: list[Tensor]) -> "DeviceVersion":
        """The version after an update, without waiting for the device."""
        self._wait()
        device = self.scale.device
        found = torch.stack([flag.to(device, non_blocking=True) for flag in found_inf]).sum()
        scale, tracker = self.scale.clone(), self.growth_tracker.clone()
        torch._amp_update_scale_(scale, tracker, found, rule.growth_factor, rule.backoff_factor, rule.growth_interval)
        if rule.max_scale is not None:  # the kernel keeps the scale where a growth leaves float32: the bound is nearer
            grows = (found == 0) & (self.growth_tracker + 1 == rule.growth_interval)
            leaves = (self.scale.double() * rule.growth_factor).float().isinf()
            scale = scale.masked_fill(grows & leaves, rule.max_scale)
        return self._made(rule, scale, tracker)

    def override(self, rule: Rule, new_scale: float | Tensor) -> "DeviceVersion":
        self._wait()
        device = self.scale.device
        if isinstance(new_scale, Tensor):
            new = new_scale.detach().to(device, torch.float32, non_blocking=True).reshape(())
        else:
            new = torch.full((), new_scale, dtype=torch.float32, device=device)  # a fill: no copy to wait for
        if rule.min_scale is not None:  # a tensor's value cannot be refused without reading it
            new = torch.where(new.isfinite(), new, self.scale)
        return self._made(rule, new, self.growth_tracker)

    def _made(self, rule: Rule, scale: Tensor, tracker: Tensor) -> "DeviceVersion":
        return DeviceVersion(_bounded(rule, scale), tracker.clone(), event_on(scale.device))

    def _wait(self) -> None:
        """Order this stream behind the one that made the version, and keep its memory until it is done."""
        if self.ready is not None:
            stream = torch.cuda.current_stream(self.scale.device)
            stream.wait_event(self.ready)
            self.scale.record_stream(stream)
            self.growth_tracker.record_stream(stream)


@dataclass(frozen=True, eq=False)
class StaticVersion(DeviceVersion):
    """The state at two addresses that every update writes, for CUDA graphs; all versions of a scaler are this one.

    One stream orders reads and writes, inside a graph and outside, so there is no event to wait for.
    """

    def scale_on(self, device: torch.device) -> Tensor:
        """The scale, shape (), float32, on `device`; elsewhere a new copy, since an old one may be out of date."""
        return self.scale.to(device, non_blocking=True)

    def write(self, made: DeviceVersion) -> "StaticVersion":
        """Take over another version's state, in place."""
        self.scale.copy_(made.scale)
        self.growth_tracker.copy_(made.growth_tracker)
        return self

    def _made(self, rule: Rule, scale: Tensor, tracker: Tensor) -> "StaticVersion":
        return self.write(DeviceVersion(_bounded(rule, scale), tracker))


Version = HostVersion | DeviceVersion


def _bounded(rule: Rule, scale: Tensor) -> Tensor:
    """Within the rule's bounds, in a tensor that nothing has written: its _version is 0."""
    bounded = rule.min_scale is not None or rule.max_scale is not None
    return scale.clamp(rule.min_scale, rule.max_scale) if bounded else scale.clone()


def event_on(device: torch.device) -> Any:
    """An event recorded now on the current stream, or None where the device has no streams."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def first_version(state: State, device: torch.device, rule: Rule, *, exact_torch: bool) -> Version:
    """Return the version of a state: on the host for the CPU unless `exact_torch`, otherwise on the device."""
    if device.type == "cpu" and not exact_torch:
        return HostVersion(replace(state, scale=rule.arithmetic.round(state.scale)))
    return DeviceVersion(*_filled(state, device), event_on(device))


def static_version(state: State, device: torch.device) -> StaticVersion:
    """A version from a state, to be updated in place. RuntimeError in a capture: each replay would make it again."""
    if _capturing(device):
        raise RuntimeError(
            "the scale would be made inside a CUDA graph, and every replay would set it back: expected a scaler "
            "that has one; run an iteration before the capture, and load_state_dict() outside of it"
        )
    return StaticVersion(*_filled(state, device))


def _filled(state: State, device: torch.device) -> tuple[Tensor, Tensor]:
    scale = torch.full((), state.scale, dtype=torch.float32, device=device)
    return scale, torch.full((), state.growth_tracker, dtype=torch.int32, device=device)


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
