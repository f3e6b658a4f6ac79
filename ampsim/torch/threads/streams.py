"""The order of two CUDA streams: one records an event, the other waits for it, on the device and not on the host."""

import torch


def record_event() -> torch.cuda.Event | None:
    """Record an event on the current stream; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def come_behind(event: torch.cuda.Event | None) -> None:
    """Order what the current stream is given from now on behind an event."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)
