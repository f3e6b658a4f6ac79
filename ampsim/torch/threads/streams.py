"""The order of CUDA streams: the first records an event, the second waits for it, and the host does not wait."""

from typing import TypeVar

import torch

T = TypeVar("T")
Event = torch.cuda.Event


def record_event() -> Event | None:
    """Record an event on the current stream; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def come_behind(event: Event | None) -> None:
    """Make what the current stream is given from now on wait for an event."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


def kept(result: T) -> T:
    """Return a result of another stream; the memory of a tensor stays until the current stream is done with it."""
    if isinstance(result, torch.Tensor) and result.is_cuda:
        result.record_stream(torch.cuda.current_stream(result.device))
    return result
