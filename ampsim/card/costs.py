"""Probe: what scalers cost beside the bare step, as ratios of one run: torch's unscale and clip, ours in one read."""

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ampsim.card.device import free_memory
from ampsim.records import Record
from ampsim.torch import GradScaler

ROUNDS, CALLS = 25, 16  # a round times so many calls of each way
NO_CLIP = 1e30
SIZES = {  # elements of each tensor
    "400 of 1,000": [1000] * 400,
    "50 of 400,000": [400_000] * 50,
    "GPT-2 small": [38_597_376, 786_432, *[1_769_472, 589_824, 2_359_296, 2_359_296, *[768] * 12] * 12],
    "150 of 10,000,000": [10_000_000] * 150,
}
NEEDED = 28  # bytes per element: parameter, gradient, two moments, and room
Ways = dict[str, Callable[[], object]]


def run(device: str, left: Callable[[], float]) -> Record:
    """Time the ways to step over sets of parameters that fit into memory, small ones first."""
    room, total, found = free_memory(device) // NEEDED or 1_000_000, left(), {}
    fitting = {name: sizes for name, sizes in SIZES.items() if sum(sizes) <= room}
    for place, (name, sizes) in enumerate(fitting.items(), start=1):
        kept = total * (1 - place / len(fitting))  # for the others
        found[name] = timed(ways(device, sizes), device, lambda kept=kept: left() > kept)  # type: ignore[misc]
    return {"sizes": found}


def ways(device: str, sizes: list[int]) -> Ways:
    """Return ways to step the same parameters; at a scale of 1 no gradient shrinks by being divided."""
    params = [torch.nn.Parameter(torch.randn(size, device=device)) for size in sizes]
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer, loss = torch.optim.AdamW(params, lr=1e-4, fused=True), torch.ones((), device=device)

    def whole(scaler: Any) -> None:
        scaler.scale(loss)
        if isinstance(scaler, GradScaler):
            scaler.unscale_and_clip_(optimizer, NO_CLIP)
        else:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(params, NO_CLIP)
        scaler.step(optimizer)
        scaler.update()

    scalers = {"torch": torch.amp.GradScaler(device, 1.0, growth_interval=1 << 30), "ours": GradScaler(device, 1.0)}
    if device == "cuda":
        scalers["ours, fused step"] = GradScaler(device, 1.0, fused_step=True)
    return {"bare": optimizer.step, **{name: partial(whole, each) for name, each in scalers.items()}}


def timed(ways: Ways, device: str, more: Callable[[], bool]) -> Record:
    """Return microseconds per call, until the device is done and until the host is; torch's over each; the waits."""
    waits = {name: waited(work, device) for name, work in ways.items()}  # in its third call: the first compiles
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    while not times["bare"] or (len(times["bare"]) < ROUNDS and more()):
        for name, work in ways.items():
            times[name].append(calls(work, device))
    device_us, host_us = ({k: statistics.median(t[i] for t in v) for k, v in times.items()} for i in (0, 1))
    ratios = {name: device_us["torch"] / each for name, each in device_us.items()}
    return {"rounds": len(times["bare"]), "waits": waits, "device_us": device_us, "host_us": host_us, "ratios": ratios}


def calls(work: Callable[[], object], device: str) -> tuple[float, float]:
    """Time some calls in a row, in microseconds per call: until the device is done, until the last has returned."""
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    for _ in range(CALLS):
        work()
    host = time.perf_counter()
    wait()
    return 1e6 * (time.perf_counter() - begun) / CALLS, 1e6 * (host - begun) / CALLS


def waited(work: Callable[[], object], device: str) -> int:
    """Count the calls in which the host waits for the device, as torch's debug mode sees them."""
    work()
    work()
    if device == "cpu":
        return 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(each.message) for each in caught)
