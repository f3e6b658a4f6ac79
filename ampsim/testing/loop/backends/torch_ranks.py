"""Ranks of torch loops: threads that hand over at collectives, so that many of them cost milliseconds."""

from collections.abc import Callable

from ampsim.testing import scheduler
from ampsim.testing.ranks.threads import Group, Meetings, live_together, waiting

STEPS = 1_000_000  # of the ranks together, between which one may hand over to another


def play(size: int, live: Callable[[Group], object]) -> str:
    """Do what `Run.together` says, in the order of collectives that comes first."""
    meetings: Meetings = {}
    with scheduler.one_core():
        run = scheduler.attempt(lambda c: live_together(c, size, meetings, live), max_steps=STEPS)
    if run.failure is not None and not isinstance(run.failure, scheduler.DeadlockError):
        raise run.failure
    return "; ".join(
        f"rank {rank} waits in {what}" for rank, what in sorted(waiting(meetings).items())
    )
