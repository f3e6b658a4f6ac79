"""The conductor runs threads one at a time, in an order that a test chooses. It knows nothing of loss scales."""

from ampsim.testing.conductor import sync
from ampsim.testing.conductor.deadlock import DeadlockError, LivelockError
from ampsim.testing.conductor.runs import (
    Conductor,
    FailingScheduleError,
    Program,
    Run,
    attempt,
    explore,
    run,
)
from ampsim.testing.conductor.schedules import Chooser, schedules
from ampsim.testing.conductor.task import one_core

__all__ = [
    "Chooser",
    "Conductor",
    "DeadlockError",
    "FailingScheduleError",
    "LivelockError",
    "Program",
    "Run",
    "attempt",
    "explore",
    "one_core",
    "run",
    "schedules",
    "sync",
]
