"""Who calls what from which thread: whatever the plan, scales are the model's and parameters those of one thread.

In the model of streams of test_fake_cuda, where every access must be ordered too, and by `make gpu` on a device, at a
size that loses a race.
"""

from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import Rule
from ampsim.core.pipeline import trajectory
from ampsim.torch import GradScaler, OptimizerThread
from tests.examples import examples
from tests.torch.helpers import INF, bits
from tests.torch.test_fake_cuda import fake_cuda


class Iteration(NamedTuple):
    overflows: bool
    backward_elsewhere: bool  # on a thread with a stream of its own
    unscale: str  # "", "unscale" or "clip"
    from_caller: bool  # unscale and step: called on the caller's thread, or launched on the optimizer's
    reads: frozenset[str]  # what the caller looks at afterwards


class Plan(NamedTuple):
    depth: int
    iterations: list[Iteration]
    updates_from_caller: bool


iterations = st.builds(
    Iteration,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "unscale", "clip"]),
    st.booleans(),
    st.frozensets(st.sampled_from(["norm", "skipped", "scale", "master"])),
)
plans = st.builds(Plan, st.integers(0, 3), st.lists(iterations, min_size=1, max_size=6), st.booleans())


class Here:
    """Stands for a thread: runs what is launched at once."""

    def launch(self, work):
        done = Future()
        done.set_result(work())
        return done


def train(plan, device, size, *, thread, worker):
    """Scales of the tickets, parameters and what the caller read."""
    alone = isinstance(thread, Here)
    scaler = GradScaler(device, 8.0, growth_interval=2, depth=plan.depth, launch=None if alone else thread.launch)
    master = torch.nn.Parameter(torch.ones(size, device=device))
    optimizer = torch.optim.AdamW([master], lr=0.1, fused=True)
    scales, seen = [], []
    for one in plan.iterations:
        ticket = scaler.begin()
        scales.append(ticket.value)
        iterate(one, scaler, ticket, master, optimizer, seen, thread=thread, worker=worker)
        if plan.updates_from_caller:
            scaler.update(ticket=ticket)
        else:
            thread.launch(lambda ticket=ticket: scaler.update(ticket=ticket))
    if not alone:
        thread.synchronize()
    return [version.read().scale for version in scales], bits(master), seen


def iterate(one, scaler, ticket, master, optimizer, seen, *, thread, worker) -> None:
    def backward() -> torch.Tensor:
        weight = torch.full(
            master.shape, 2.0, device=master.device, requires_grad=True
        )  # not the master: no wait for the optimizer
        scaler.scale((weight * (INF if one.overflows else 3.0)).sum(), ticket).backward()
        return weight.grad

    def step() -> torch.Tensor | None:
        norm = None
        if one.unscale == "clip":
            norm = scaler.unscale_and_clip_(optimizer, 1.0, ticket)
        elif one.unscale:
            scaler.unscale_(optimizer, ticket)
        scaler.step(optimizer, ticket=ticket)
        return norm

    # What a job returns was made on its stream, and freed there: whoever takes it keeps it.
    grad = worker.launch(backward).result().clone() if one.backward_elsewhere else backward()

    def hand_over(grad=grad) -> None:
        master.grad = grad

    job = thread.launch(hand_over)
    norm = step() if one.from_caller else thread.launch(step)
    if one.reads:
        job.result()
        norm = norm if one.from_caller else norm.result()
    looks = {
        "norm": lambda: None if norm is None else bits(norm),
        "skipped": lambda: scaler.last_step.skipped,
        "scale": lambda: ticket.value.read().scale,
        "master": lambda: bits(master),
    }
    seen.extend(looks[what]() for what in sorted(one.reads))


def check(plan, device, size, thread, worker) -> None:
    found = train(plan, device, size, thread=thread, worker=worker)
    flags = [one.overflows for one in plan.iterations]
    assert found[0] == trajectory(Rule(8.0, growth_interval=2), plan.depth, flags)[:-1]
    assert found == train(plan, device, size, thread=Here(), worker=Here())


@contextmanager
def closing(*threads):
    with ExitStack() as stack:
        for thread in threads:
            stack.callback(thread.close)
        yield threads


EVERYTHING = frozenset(["norm", "skipped", "scale", "master"])
clipped = Iteration(True, True, "clip", True, EVERYTHING)
launched = Iteration(False, False, "unscale", False, frozenset())


@settings(max_examples=examples(ms=20))
@given(plans)
@example(Plan(0, [clipped, launched, clipped], True))
@example(Plan(2, [launched, clipped, launched, launched], False))
def test_in_a_model_of_streams_every_access_is_ordered(plan) -> None:
    with fake_cuda() as world:
        threads = OptimizerThread(), OptimizerThread()
        for thread in threads:
            thread.launch(world.__enter__).result()
        with closing(*threads):
            with world:
                check(plan, "cpu", 3, *threads)
            for thread in threads:
                thread.launch(lambda: world.__exit__(None, None, None))
        assert not world.wrong, world.wrong[:3]


@pytest.mark.gpu
@settings(max_examples=examples(ms=50))
@given(plans)
@example(Plan(0, [clipped, launched, clipped], True))
def test_on_cuda_threads_and_streams_change_nothing(plan) -> None:
    with closing(OptimizerThread(), OptimizerThread()) as threads:
        check(plan, "cuda", 1 << 22, *threads)
