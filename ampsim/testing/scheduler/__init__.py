"""The scheduler runs threads one at a time, in an order that a test chooses. It knows nothing of
loss scales.
"""

from ampsim.testing.scheduler import sync
from ampsim.testing.scheduler.deadlock import DeadlockError, LivelockError
from ampsim.testing.scheduler.runs import (
    KEEP_RUNNING,
    FailingScheduleError,
    Program,
    Run,
    Scheduler,
    attempt,
    explore,
    run,
)
from ampsim.testing.scheduler.task import one_core
from ampsim.testing.scheduler.task_runner import Chooser

__all__ = [
    "KEEP_RUNNING",
    "Chooser",
    "DeadlockError",
    "FailingScheduleError",
    "LivelockError",
    "Program",
    "Run",
    "Scheduler",
    "attempt",
    "explore",
    "one_core",
    "run",
    "sync",
]
