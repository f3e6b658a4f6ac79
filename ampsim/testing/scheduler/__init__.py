"""The scheduler runs threads one at a time, in an order that a test chooses. It knows nothing of
loss scales.
"""

from ampsim.testing.scheduler import sync as sync
from ampsim.testing.scheduler.deadlock import DeadlockError as DeadlockError
from ampsim.testing.scheduler.deadlock import LivelockError as LivelockError
from ampsim.testing.scheduler.runs import KEEP_RUNNING as KEEP_RUNNING
from ampsim.testing.scheduler.runs import FailingScheduleError as FailingScheduleError
from ampsim.testing.scheduler.runs import Program as Program
from ampsim.testing.scheduler.runs import Run as Run
from ampsim.testing.scheduler.runs import Scheduler as Scheduler
from ampsim.testing.scheduler.runs import attempt as attempt
from ampsim.testing.scheduler.runs import explore as explore
from ampsim.testing.scheduler.runs import run as run
from ampsim.testing.scheduler.task import one_core as one_core
from ampsim.testing.scheduler.task_runner import Chooser as Chooser
