"""Probe: the optimizer on a stream and a thread of its own, under drawn schedules that try to make one overtake."""

import random
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any, NamedTuple

import torch

from ampsim.core.machine import Rule
from ampsim.core.pipeline import trajectory
from ampsim.records import Record
from ampsim.torch import GradScaler, OptimizerThread

SIZES = (1 << 10, 1 << 18, 1 << 22, 1 << 24)  # elements: the last takes longer to step than to launch
ITERATIONS, KEPT = 24, 8
CYCLES, SECONDS = 2_000_000, 0.002  # of a pause, at most


class Plan(NamedTuple):
    """A schedule: which iterations overflow, how late the scales are, and who pauses before what."""

    interval: int
    depth: int
    size: int  # elements
    flags: list[bool]
    pauses: list[tuple[float, float]]  # before the backward pass, before the step; in parts of the longest, < 0: host


def draw(seed: int, sizes: tuple[int, ...]) -> Plan:
    """Draw a schedule, always the same for a seed."""
    it = random.Random(seed)  # noqa: S311 - no secret
    pauses = [(it.choice([0.0, it.uniform(-1, 1)]), it.choice([0.0, it.uniform(-1, 1)])) for _ in range(ITERATIONS)]
    return Plan(it.randint(1, 4), it.randint(0, 3), it.choice(sizes), [it.random() < 0.25 for _ in pauses], pauses)


def run(device: str, left: Callable[[], float], sizes: tuple[int, ...] = SIZES) -> Record:
    """Return which schedules left other scales than the model, or other bits than the same in order; and some."""
    seed, differing, kept = 0, [], []
    while device != "cpu" and (not seed or left()):
        plan = draw(seed, sizes)
        rule: Record = {"init_scale": 8.0, "growth_interval": plan.interval}
        scales, bits = train(device, plan, threaded=True)
        if scales != trajectory(Rule(**rule), plan.depth, plan.flags)[:-1] or bits != train(device, plan)[1]:
            differing.append(seed)
        if seed < KEPT or seed in differing[:KEPT]:
            seen = {"rule": rule, "depth": plan.depth, "found_inf": plan.flags, "scale": scales}
            kept.append({"name": f"schedule {seed}", **seen})
        seed += 1
    found = {"schedules": seed, "differing": differing, "trajectories": kept}
    return found if seed else {"skipped": "a CPU has no streams"}


def train(device: str, plan: Plan, *, threaded: bool = False) -> tuple[list[float], bytes]:
    """Return the scales that were used and the parameters' bits: on two threads and streams, or in order on one."""
    with closing(OptimizerThread()) if threaded else nullcontext() as thread:
        return steps(device, plan, thread)


def steps(device: str, plan: Plan, thread: OptimizerThread | None) -> tuple[list[float], bytes]:
    """Do the iterations of a plan; without a thread nobody pauses."""
    launch = thread.launch if thread else None
    scaler = GradScaler(device, 8.0, growth_interval=plan.interval, depth=plan.depth, launch=launch)
    master = torch.nn.Parameter(torch.linspace(-1, 1, plan.size, device=device))
    optimizer, used = torch.optim.AdamW([master], lr=0.01, fused=True), []
    for number, (flag, (before, behind)) in enumerate(zip(plan.flags, plan.pauses, strict=True)):
        weight = torch.ones(plan.size, device=device, requires_grad=True)  # not the master: nobody waits for its step
        ticket = scaler.begin()
        used.append(ticket.value)
        pause(before if thread else 0.0, device)
        scaler.scale((weight * (float("inf") if flag else 1.0 + number)).sum(), ticket).backward()

        def step(grad: Any = weight.grad, ticket: Any = ticket, time: float = behind if thread else 0.0) -> None:
            pause(time, device)
            master.grad = grad
            scaler.step(optimizer, ticket=ticket)
            master.grad = None

        weight.grad = None
        thread.launch(step) if thread else step()
        scaler.update(ticket=ticket)
    scaler.synchronize()
    return [version.read().scale for version in used], master.detach().cpu().numpy().tobytes()


def pause(length: float, device: str) -> None:
    """Keep the host, or with a positive length the stream of this thread, from going on at once."""
    if length < 0:
        time.sleep(-length * SECONDS)
    elif length and device == "cuda":
        torch.cuda._sleep(int(length * CYCLES))  # type: ignore[no-untyped-call]  # noqa: SLF001
