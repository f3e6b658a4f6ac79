"""Probes of a step beside torch's: the fused one's bits, and what each costs beside the bare step."""

import itertools
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ampsim.card.device import Skipped, free_memory
from ampsim.records import Record
from ampsim.torch import GradScaler

STEPS = 40  # of twins
ROUNDS, CALLS = 15, 10  # a round times so many calls of each way
NO_CLIP = 1e30
SIZES = {  # elements of each tensor
    "400 of 1,000": [1000] * 400,
    "50 of 400,000": [400_000] * 50,
    "GPT-2 small": [38_597_376, 786_432, *[1_769_472, 589_824, 2_359_296, 2_359_296, *[768] * 12] * 12],
    "150 of 10,000,000": [10_000_000] * 150,
}
NEEDED = 28  # bytes per element: parameter, gradient, two moments, and room
Ways = dict[str, Callable[[], object]]


def compare(device: str) -> Iterator[Record]:
    """Step pair after pair of twins; yield how many came to differ, with what made them."""
    differing: list[Record] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fused_step=True", RuntimeWarning)  # it says why torch steps instead
        try:
            for seed in itertools.count():
                found = twins(device, seed)
                differing += [found] if found["differing"] else []
                yield {"runs": seed + 1, "differing": differing}
        except RuntimeWarning as warning:
            raise Skipped(warning) from None


def twins(device: str, seed: int) -> Record:
    """Step the same parameters by torch and by ours; count the elements that differ, and after which step the first.

    torch's scaler divides in its own kernel, and nobody clips.
    """
    draw, first = random.Random(seed), None  # noqa: S311 - no secret
    kind, sizes = draw.choice([torch.optim.Adam, torch.optim.AdamW]), [draw.randint(1, 4000), 8192, 1_000_003]
    options = {"betas": draw.choice([(0.9, 0.999), (0.8, 0.95)]), "weight_decay": draw.choice([0, 0.1])}
    pairs = [[torch.nn.Parameter(torch.linspace(-1, 1, size, device=device)) for size in sizes] for _ in "ab"]
    optimizers: list[Any] = [kind(pair, **options, fused=True) for pair in pairs]
    scalers: list[Any] = [torch.amp.GradScaler(device, growth_interval=2)]
    scalers.append(GradScaler(device, growth_interval=2, fused_step=True))
    generator = torch.Generator(device).manual_seed(seed)
    for number in range(STEPS):
        grads = [torch.randn(size, device=device, generator=generator) for size in sizes]
        grads[-1][-1] = float("inf") if number % 5 == 1 else 1.0
        for params, optimizer, scaler in zip(pairs, optimizers, scalers, strict=True):
            scale = scaler.scale(torch.ones((), device=device))
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad * scale
            scaler.step(optimizer)
            scaler.update()
        differing = sum(int((a != b).sum()) for a, b in zip(*pairs, strict=True))
        first = number if differing and first is None else first
    scales = [scaler.get_scale() for scaler in scalers]
    return {"seed": seed, "kind": kind.__name__, **options, "first": first, "differing": differing, "scales": scales}


def cost(device: str) -> Iterator[Record]:
    """Time the ways to step over sets of parameters that fit into memory, small ones first."""
    room, found = free_memory(device) // NEEDED or 1_000_000, {}
    for name, sizes in SIZES.items():
        if sum(sizes) <= room:
            for measured in timed(ways(device, sizes), device):
                found[name] = measured
                yield {"sizes": found}


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


def timed(ways: Ways, device: str) -> Iterator[Record]:
    """Yield, round by round, medians of microseconds per call for device and host; torch's over each; the waits."""
    waits = {name: waited(work, device) for name, work in ways.items()}  # in its third call: the first compiles
    rounds: list[dict[str, tuple[float, float]]] = []
    while len(rounds) < ROUNDS:
        rounds.append({name: calls(work, device) for name, work in ways.items()})
        device_us, host_us = (
            {name: statistics.median(each[name][i] for each in rounds) for name in ways} for i in (0, 1)
        )
        ratios = {name: device_us["torch"] / each for name, each in device_us.items()}
        yield {"rounds": len(rounds), "waits": waits, "device_us": device_us, "host_us": host_us, "ratios": ratios}


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
