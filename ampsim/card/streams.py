"""Probe: the optimizer on a stream and a thread of its own, under drawn schedules that try to make one overtake."""

import itertools
import random
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

import torch

from ampsim.card.device import Skipped
from ampsim.card.verify import mismatch
from ampsim.records import Record
from ampsim.torch import GradScaler, OptimizerThread

SIZES = (1 << 10, 1 << 18, 1 << 22, 1 << 24)  # elements: the last takes longer to step than to launch
ITERATIONS, KEPT = 24, 8
CYCLES, SECONDS = 2_000_000, 0.002  # of a pause, at most


def race(device: str) -> Iterator[Record]:
    """Yield which schedules left other scales than the model, or other bits than the same in order; and some."""
    if device == "cpu":
        raise Skipped("a CPU has no streams")
    found: Record = {"schedules": 0, "differing": [], "trajectories": []}
    for seed in itertools.count():
        run, bits = train(device, seed, threaded=True)
        found["schedules"] += 1
        if mismatch(run) or bits != train(device, seed)[1]:
            found["differing"].append(seed)
        if seed < KEPT or seed in found["differing"][:KEPT]:
            found["trajectories"].append(run)
        yield found


def train(device: str, seed: int, *, threaded: bool = False) -> tuple[Record, bytes]:
    """Return the scales that were used and the parameters' bits: on two threads and streams, or in order, unpaused.

    The seed says which iterations overflow, how late the scales are, and who pauses before what, for how long.
    """
    it = random.Random(seed)  # noqa: S311 - no secret
    rule: Record = {"init_scale": 8.0, "growth_interval": it.randint(1, 4)}
    depth, size = it.randint(0, 3), it.choice(SIZES)
    flags = [it.random() < 0.25 for _ in range(ITERATIONS)]
    with closing(OptimizerThread()) if threaded else nullcontext() as thread:
        scaler = GradScaler(device, **rule, depth=depth, launch=thread.launch if thread else None)
        master = torch.nn.Parameter(torch.linspace(-1, 1, size, device=device))
        optimizer, used = torch.optim.AdamW([master], lr=0.01, fused=True), []

        def step(grad: Any, ticket: Any, length: float) -> None:
            pause(length, device)
            master.grad = grad
            scaler.step(optimizer, ticket=ticket)
            master.grad = None

        for number, flag in enumerate(flags):
            before, behind = (it.choice([0.0, it.uniform(-1, 1)]) if thread else 0.0 for _ in "ab")
            weight = torch.ones(size, device=device, requires_grad=True)  # nobody waits for the master's step
            ticket = scaler.begin()
            used.append(ticket.value)
            pause(before, device)
            scaler.scale((weight * (float("inf") if flag else 1.0 + number)).sum(), ticket).backward()
            work, weight.grad = partial(step, weight.grad, ticket, behind), None
            thread.launch(work) if thread else work()
            del work  # it holds the gradient, which is free when its step is done
            scaler.update(ticket=ticket)
        scaler.synchronize()
    scales = [version.read().scale for version in used]
    run = {"name": f"schedule {seed}", "rule": rule, "depth": depth, "found_inf": flags, "scale": scales}
    return run, master.detach().cpu().numpy().tobytes()


def pause(length: float, device: str) -> None:
    """Keep the host (a part of the longest, below 0), or the stream of this thread (above 0), from going on at once."""
    if length < 0:
        time.sleep(-length * SECONDS)
    elif length and device == "cuda":
        torch.cuda._sleep(int(length * CYCLES))  # type: ignore[no-untyped-call]  # noqa: SLF001
