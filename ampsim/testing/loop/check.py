"""A check of training loops, and a counterexample to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampsim.testing.check import Check, stating
from ampsim.testing.loop.run import Fault
from ampsim.testing.loop.runs import Batch, Make
from ampsim.testing.loop.state import Difference


@dataclass(frozen=True)
class Broken:
    """A counterexample to a check.

    Attributes:
        where: the step after which two runs differ, as text.
        step: index of that step.
        differences: the arrays that differ, in order.
        scale: ratio of the scales of the two runs; 1 for equal scales.
        cause: the usual cause and the fix, if the check knows them without the names of arrays.
        seen: the observation, if it is not a difference of arrays.
        fault: the seeded fault.
    """

    where: str
    step: int
    differences: Sequence[Difference] = ()
    scale: float = 1.0
    cause: str = ""
    seen: str = ""
    fault: Fault | None = None


@dataclass(frozen=True, kw_only=True)
class LoopCheck(Check):
    """A check of loops. Its function returns a counterexample on batches, or None."""

    group: str = "loop"


def check(issue: str) -> Callable[[Callable[[Make, Sequence[Batch]], Broken | None]], LoopCheck]:
    """Make a check of a function: its name and the first paragraph of its docstring are the check's.

    Args:
        issue: address of a public report of a loop that failed the check.
    """
    return stating(LoopCheck, {}, issue=issue)
