"""The order of streams on an accelerator.

What one stream writes and another one reads is ordered by an event: the writer records it behind
its work, and the reader's stream waits for it before its own work. The host waits only where it
reads a number. Events and streams are `torch.Event` and `torch.accelerator`, so this holds for any
accelerator that torch knows. The CPU has no streams.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


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

    def __bool__(self) -> bool:
        """Read the flag; waits for the device."""
        wait_for(self.ready, self.found_inf.device)
        return bool(self.found_inf.item())
