"""A state in two scalar tensors, of which torch's own kernel makes the next: no update waits for the device.

That is the state of a scaler on any device but the CPU, and of one that does exactly what torch does.

A CUDA graph replays one iteration on the same addresses, so what its update writes must be what its `scale`
reads. `StaticVersion` is for that: every update writes the same two tensors, as torch's own scaler does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from ampsim.core.machine import Rule, State
from ampsim.torch.gradients.unscale import copied
from ampsim.torch.state.version import Outcome, Version


@dataclass(frozen=True, eq=False)
class DeviceVersion(Version[Rule, State]):
    """A state on a device: nothing here waits for it except `read`."""

    scale: Tensor  # (), float32, never written again
    growth_tracker: Tensor  # (), int32, never written again
    ready: torch.cuda.Event | None = None  # recorded when the two were made
    _copies: dict[torch.device, "DeviceVersion"] = field(default_factory=dict)
    in_place: ClassVar[bool] = False

    @classmethod
    def start(cls, states: tuple[State, ...], rule: Rule, device: torch.device) -> tuple[Self, ...]:
        """Make a version of each state; scales become float32."""
        return tuple(cls(*_filled(state, device), event_on(device)) for state in states)

    def scale_on(self, device: torch.device) -> Tensor:
        self._wait()
        if device == self.scale.device:
            return self.scale
        copy = self._copies.get(device)
        if copy is None:  # with an event of its own: other streams may read the copy too
            tensor = copied(self.scale, device)
            copy = self._copies.setdefault(device, DeviceVersion(tensor, tensor, event_on(device)))
        copy._wait()  # noqa: SLF001
        return copy.scale

    def inverse_on(self, device: torch.device) -> Tensor:
        return self.scale_on(device).double().reciprocal().float()

    def keep(self, tensors: Iterable[Tensor]) -> None:
        if self.ready is not None:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))

    @property
    def device(self) -> torch.device:
        return self.scale.device

    @property
    def may_be_below_one(self) -> bool:
        """Always True: reading the scale would wait for the device."""
        return True

    def read(self) -> State:
        self._wait()
        return State(float(self.scale.item()), int(self.growth_tracker.item()))

    def number(self) -> float:
        self._wait()
        return float(self.scale.item())

    def next(self, rule: Rule, outcome: Outcome) -> "DeviceVersion":
        return self._updated(rule, outcome.flags)

    @torch.inference_mode(
        mode=False
    )  # what is made here is multiplied by where gradients are wanted
    def _updated(self, rule: Rule, flags: list[Tensor]) -> "DeviceVersion":
        self._wait()
        device = self.scale.device
        flags = [copied(flag, device) for flag in flags]
        found = flags[0] if len(flags) == 1 else torch.stack(flags).sum()
        scale, counted = self.scale.clone(), self.growth_tracker
        if (
            rule.growth_test == ">="
        ):  # the kernel knows "==" only: no count may be past the interval
            counted = counted.clamp(max=min(rule.growth_interval, 2**31) - 1)
        tracker = counted.clone()
        torch._amp_update_scale_(
            scale, tracker, found, rule.growth_factor, rule.backoff_factor, rule.growth_interval
        )
        if (
            rule.max_scale is not None
        ):  # the kernel keeps the scale where a growth leaves float32: the bound is nearer
            grows = (found == 0) & (counted + 1 == rule.growth_interval)
            leaves = (self.scale.double() * rule.growth_factor).float().isinf()
            scale = scale.masked_fill(grows & leaves, rule.max_scale)
        return self._made(rule, scale, tracker)

    @torch.inference_mode(mode=False)
    def override(self, rule: Rule, new_scale: float | Tensor) -> "DeviceVersion":
        self._wait()
        device = self.scale.device
        if isinstance(new_scale, Tensor):
            if (
                new_scale.is_cuda
            ):  # a copy of the caller's stream, which lets it go before this one has read it
                self.keep([new_scale])
            new = new_scale.detach().to(device, torch.float32, non_blocking=True).reshape(())
        else:
            new = torch.full(
                (), new_scale, dtype=torch.float32, device=device
            )  # a fill: no copy to wait for
        if rule.min_scale is not None:  # a tensor's value cannot be refused without reading it
            new = torch.where(new.isfinite(), new, self.scale)
        return self._made(rule, new, self.growth_tracker.clone())

    def _successor(self, scale: Tensor, tracker: Tensor) -> "DeviceVersion":
        return DeviceVersion(scale, tracker, event_on(scale.device))

    def _made(self, rule: Rule, scale: Tensor, tracker: Tensor) -> "DeviceVersion":
        return self._successor(_bounded(rule, scale), tracker)

    def _wait(self) -> None:
        """Order this stream behind the one that made the version, and keep its memory until it is done."""
        if self.ready is not None:
            stream = torch.cuda.current_stream(self.scale.device)
            stream.wait_event(self.ready)
            self._keep(stream)

    def _keep(self, stream: torch.cuda.Stream) -> None:
        self.scale.record_stream(stream)
        self.growth_tracker.record_stream(stream)


@dataclass(frozen=True, eq=False)
class StaticVersion(DeviceVersion):
    """The state at two addresses that every update writes, for CUDA graphs; all versions of a scaler are this one.

    One stream orders reads and writes, inside a graph and outside, so there is no event to wait for.
    """

    in_place: ClassVar[bool] = True

    @classmethod
    def start(cls, states: tuple[State, ...], rule: Rule, device: torch.device) -> tuple[Self, ...]:
        """Create the version; raise RuntimeError in a capture, as each replay would recreate it."""
        if _capturing(device):
            raise RuntimeError(
                "the scale would be made inside a CUDA graph, and every replay would set it back: expected a scaler "
                "that has one; run an iteration before the capture, and load_state_dict() outside of it"
            )
        return (cls(*_filled(states[-1], device)),)

    def restored(self, states: tuple[State, ...], rule: Rule) -> tuple[Self, ...]:
        """Write the state of a loaded state dict into this version."""
        return (self._write(*self.start(states, rule, self.device)),)

    def scale_on(self, device: torch.device) -> Tensor:
        """Return the scale, shape (), float32, on `device`; elsewhere a new copy: an old one may be out of date."""
        return copied(self.scale, device)

    def _write(self, made: DeviceVersion) -> Self:
        self.scale.copy_(made.scale)
        self.growth_tracker.copy_(made.growth_tracker)
        return self

    @torch.inference_mode(mode=False)
    def _successor(self, scale: Tensor, tracker: Tensor) -> "StaticVersion":
        return self._write(DeviceVersion(scale, tracker))


def _bounded(rule: Rule, scale: Tensor) -> Tensor:
    """Clamp to the rule's bounds, in a tensor that nothing has written: its _version is 0."""
    bounded = rule.min_scale is not None or rule.max_scale is not None
    return scale.clamp(rule.min_scale, rule.max_scale) if bounded else scale.clone()


def event_on(device: torch.device) -> torch.cuda.Event | None:
    """Record an event on the current stream; None where the device has no streams."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


@torch.inference_mode(mode=False)
def _filled(state: State, device: torch.device) -> tuple[Tensor, Tensor]:
    scale = torch.full((), state.scale, dtype=torch.float32, device=device)
    return scale, torch.full((), state.growth_tracker, dtype=torch.int32, device=device)


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
