"""The conductor runs threads one at a time, in an order that a test chooses. It knows nothing of loss scales."""

from ampsim.testing.conductor import sync
from ampsim.testing.conductor.deadlock import DeadlockError, LivelockError
from ampsim.testing.conductor.runs import (
    Chooser,
    Conductor,
    FailingScheduleError,
    Run,
    attempt,
    explore,
    one_core,
    pct,
    run,
    schedules,
)

__all__ = [
    "Chooser",
    "Conductor",
    "DeadlockError",
    "FailingScheduleError",
    "LivelockError",
    "Run",
    "attempt",
    "explore",
    "one_core",
    "pct",
    "run",
    "schedules",
    "sync",
]
