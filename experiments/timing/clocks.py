"""What a piece of work costs: time by two clocks, and on CUDA launches, copies, waits for the device, and memory.

On the CPU the clocks are the CPU time of the process and of the thread; nothing is launched or waited for.
"""

import functools
import json
import statistics
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from experiments.timing.rounds import in_turn

Work = Callable[[], object]
Event = Mapping[str, Any]  # of torch's profiler


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


def copy_rates(elements: int, rounds: int, device: str) -> dict[str, float]:
    """Return the GB/s of a copy on the device, read and written bytes both counted, and of a read for a norm.

    The median round of each, as of all that is held against them. Float32; random, as some memories compress zeros.
    """
    source = torch.randn(elements, device=device)
    target = torch.empty_like(source)
    ways: dict[str, tuple[int, Work]] = {
        "copy": (8, lambda: target.copy_(source)),
        "read": (4, lambda: torch.linalg.vector_norm(source)),
    }
    times = in_turn([*ways], lambda name: timed(ways[name][1], device), rounds, lambda _: None)
    middle = {name: max(1e-9, statistics.median(seconds.device for seconds in taken)) for name, taken in times.items()}
    return {name: round(ways[name][0] * elements / middle[name] / 1e9, 1) for name in ways}


def cold(device: str) -> Work:
    """Return what empties a GPU's cache by writing to more memory than it holds; on the CPU what does nothing.

    Inputs that fit it would be read from there in every round, and never from memory.
    """
    return nothing if device == "cpu" else torch.empty(1 << 28, dtype=torch.uint8, device=device).zero_


def nothing() -> None:
    """Do nothing, before work that leaves everything as it was."""


class Calls(NamedTuple):
    """The counts of one call of some work, as the profiler saw them; None where it did not see the device."""

    launches: int | None  # of kernels
    copies: int | None  # by the device, from anywhere to anywhere
    fills: int | None
    waits: int | None  # calls in which the host waits for the device


# Of CUDA's runtime and of its driver. A plain copy waits, an asynchronous one does not.
WAITS = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"}
WAITS |= {"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"}
REGION = "counted"


def calls(work: Work, device: str) -> Calls:
    """Count what work does that was done before, so that nothing is compiled or allocated any more."""
    if device == "cpu":
        work()
        return Calls(0, 0, 0, 0)
    torch.cuda.synchronize()
    return calls_in(trace(work, torch.cuda.synchronize, [ProfilerActivity.CPU, ProfilerActivity.CUDA]))


def trace(work: Work, after: Work, activities: list[ProfilerActivity]) -> list[Event]:
    """Return the profiler's events of the work, marked as a region, and of what comes after it."""
    with profile(activities=activities, acc_events=True) as seen:  # one cycle; without, torch 2.11 warns
        with record_function(REGION):
            work()
        after()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events: list[Event] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def calls_in(events: Sequence[Event]) -> Calls:
    """Return all that the device did in a trace, and the waits that began within the region."""
    region = next(e for e in events if e.get("cat") == "user_annotation" and e.get("name") == REGION)
    start, end = region["ts"], region["ts"] + region["dur"]
    kinds = Counter(str(event.get("cat")) for event in events)
    if not kinds["cuda_runtime"] + kinds["cuda_driver"]:
        return Calls(None, None, None, None)
    asked = (event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver"))
    waits = sum(event["name"] in WAITS and start <= event["ts"] <= end for event in asked)
    return Calls(kinds["kernel"], kinds["gpu_memcpy"], kinds["gpu_memset"], waits)


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


def peak_bytes(work: Work, device: str) -> int:
    """Return the most memory that the work held beside what was there before; 0 on the CPU: torch does not count."""
    if device == "cpu":
        work()
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
