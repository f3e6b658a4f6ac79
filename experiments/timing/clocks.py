"""What a piece of work costs: time by two clocks, and on CUDA waits for the device.

On the CPU the clocks are the CPU time of the process and of the thread; nothing is waited for.
"""

import functools
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch

Work = Callable[[], object]


class Seconds(NamedTuple):
    """The times by two clocks of one piece of work."""

    device: float  # between an event before the work and one after it; on the CPU, CPU time of the process
    host: float  # until the last call had returned, the device may still be at work; on the CPU, that of the thread


def timed(work: Work, device: str) -> Seconds:
    """Time work. On CUDA its stream is kept busy before, for longer than the host will take to give it all.

    On an idle stream the events would enclose the time in which Python makes the next launch ready.
    """
    if device == "cpu":
        process, thread = time.process_time(), time.thread_time()
        work()
        return Seconds(time.process_time() - process, time.thread_time() - thread)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(_cycles_per_second() * 2 * max(_hosts)))  # type: ignore[no-untyped-call]  # noqa: SLF001
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    before = time.perf_counter()
    work()
    host = time.perf_counter() - before
    end.record()
    torch.cuda.synchronize()
    _hosts.append(min(host, 0.2))
    return Seconds(float(start.elapsed_time(end)) / 1000, host)


# Seconds of the host in the latest calls: what the next will take. A compilation is forgotten within the warm-up.
_hosts: deque[float] = deque([0.005], maxlen=32)


@functools.cache
def _cycles_per_second() -> float:
    """Return how many of the cycles that ``_sleep`` counts pass per second of the events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    torch.cuda._sleep(10**8)  # type: ignore[no-untyped-call]  # noqa: SLF001
    end.record()
    torch.cuda.synchronize()
    return 1e11 / float(start.elapsed_time(end))


def warned_waits(work: Work, device: str) -> int:
    """Count the waits that torch's own debug mode sees; it knows no other library's."""
    if device == "cpu":
        work()
        return 0
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.cuda.set_sync_debug_mode("warn")
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)
