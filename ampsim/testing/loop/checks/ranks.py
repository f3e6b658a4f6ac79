"""The check ranks_equal_one_process."""

import inspect
import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.run import Fault, Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin, iterations
from ampsim.testing.loop.state import LOGGED, Difference, differences

SCALE, GROWTH_INTERVAL = 2.0**8, 3
STEPS = 1_000_000  # of the ranks together, between which one may hand over to another
PLANS: tuple[Collection[int], ...] = (
    (),
    (0,),
    (1,),
    (0, 1),
)  # which of two ranks have an inf
WAITS = (
    "a rank skips a collective because of its own overflow: "
    "let all ranks agree on the skip before any rank skips a collective"
)
APART = (
    "each rank decides alone whether to skip, or the gradients are not averaged: average the gradients before the "
    "scaler checks them, and check after scaler.update() whether the scale fell. If each rank keeps its own gradients, "
    "use a scaler that synchronizes, such as ampsim.torch.GradScaler(group=group)"
)


@check(issue="https://github.com/pytorch/pytorch/issues/136009")
def ranks_equal_one_process(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """Two ranks that get the same batches train like one process, with an inf on either rank, on
    both, or on none.

    The mean of equal gradients is exact, so state and scaler are equal bit for bit. State whose
    shape differs is a shard and is not compared.
    """
    if "group" not in inspect.signature(make).parameters:
        raise NotApplicableError("pass make(scaler, group=None) to test ranks")
    groups = iterations(make, batches)
    if len(groups) < 2:
        raise NotApplicableError(
            "pass more batches: the scaler must be updated after at least 2 of them"
        )
    return next(filter(None, (_play(make, groups, bad) for bad in PLANS)), None)


def _play(
    make: Make, groups: Sequence[Sequence[Batch]], bad: Collection[int]
) -> Broken | None:
    """Compare ranks, some with an inf in one iteration, with one process with an inf in all
    gradients.
    """
    whole = begin(make, SCALE, GROWTH_INTERVAL)
    if not whole.parameters():
        raise NotApplicableError(
            "no parameters found: name the model or the optimizer in state"
        )
    _train(whole, groups, Fault() if bad else None)
    ranks: dict[int, Run] = {}
    errors: list[str] = []

    def live(group: Any) -> None:
        rank = group.rank()
        try:
            ranks[rank] = run = begin(make, SCALE, GROWTH_INTERVAL, group=group)
            # An average has parameters that no gradient reaches.
            owned = run.owners()
            names = [name for name in run.parameters() if name in owned] or [
                *run.parameters()
            ]
            # A NaN and a -inf in one element each, as some verdicts look for inf alone, or at one
            # parameter.
            fault = (
                Fault(math.nan, names[-1]) if rank == 0 else Fault(-math.inf, names[0])
            )
            _train(run, groups, fault if rank in bad else None)
        except LoopError as error:
            errors.append(f"on rank {rank} {error}")

    waits = _together(live)
    if errors:
        raise NotApplicableError(errors[0])
    planted = f", with an inf on rank {' and '.join(map(str, bad))}" if bad else ""
    if waits:
        steps = sum(map(len, groups))
        return Broken(
            f"in {steps} batches{planted}", steps - 1, WAITS, seen=waits, fault=None
        )
    for rank, run in sorted(ranks.items()):
        for step, batch in enumerate(batch for group in groups for batch in group):
            if found := _apart(whole, run, step + 1):
                where = f"on rank {rank} of 2 after batch {batch.place}{planted}"
                return Broken(where, step, APART, found, fault=None)
    return None


def _train(run: Run, groups: Sequence[Sequence[Batch]], fault: Fault | None) -> None:
    """Train on all batches, with a fault in the middle iteration."""
    for number, group in enumerate(groups):
        is_bad = fault is not None and number == len(groups) // 2
        with run.planting(fault) if fault and is_bad else nullcontext():
            advance(run, group)


def _together(live: Any) -> str:
    """Call a function with its group on two ranks, which are threads; return who waits for whom in
    the end, or "".
    """
    from ampsim.testing import scheduler
    from ampsim.testing.ranks.threads import Meetings, live_together, waiting

    meetings: Meetings = {}
    with scheduler.one_core():
        run = scheduler.attempt(
            lambda c: live_together(c, 2, meetings, live), max_steps=STEPS
        )
    if run.failure is not None and not isinstance(run.failure, scheduler.DeadlockError):
        raise run.failure
    places = sorted(waiting(meetings).items())
    return "; ".join(f"rank {rank} waits in {what}" for rank, what in places)


def _apart(whole: Run, run: Run, index: int) -> list[Difference]:
    """Return how a rank differs from one process, in the scaler's state first."""
    found = differences(
        whole.scalers[index] | whole.states[index],
        run.scalers[index] | run.states[index],
    )
    shapes = ((each, getattr(each.left, "shape", None)) for each in found)
    return [
        each
        for each, shape in shapes
        if shape == getattr(each.right, "shape", None)
        and not each.name.startswith(LOGGED)
    ]
