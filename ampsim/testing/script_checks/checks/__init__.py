"""The checks of scripts, in the order in which they run: an earlier finding may explain a later one."""

from ampsim.testing.script_checks.check import CHECKS
from ampsim.testing.script_checks.checks import calls, never, repeated

__all__ = ["CHECKS", "calls", "never", "repeated"]
