"""The conductor runs threads one at a time, in an order that a test chooses. It knows nothing of loss scales."""

from ampsim.testing.conductor import sync as sync
from ampsim.testing.conductor.deadlock import DeadlockError as DeadlockError
from ampsim.testing.conductor.deadlock import LivelockError as LivelockError
from ampsim.testing.conductor.runs import Chooser as Chooser
from ampsim.testing.conductor.runs import Conductor as Conductor
from ampsim.testing.conductor.runs import FailingScheduleError as FailingScheduleError
from ampsim.testing.conductor.runs import Run as Run
from ampsim.testing.conductor.runs import attempt as attempt
from ampsim.testing.conductor.runs import explore as explore
from ampsim.testing.conductor.runs import one_core as one_core
from ampsim.testing.conductor.runs import pct as pct
from ampsim.testing.conductor.runs import run as run
from ampsim.testing.conductor.runs import schedules as schedules
