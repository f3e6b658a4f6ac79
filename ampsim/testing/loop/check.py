"""A check of training loops, and a counterexample to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ampsim.testing.check import Check, stating
from ampsim.testing.loop.run import NOTHING, Fault
from ampsim.testing.loop.state import Difference

# Makes a check of a function of a loop's maker and of batches, which returns a counterexample or
# None.
check: Callable[..., Callable[..., Check]] = partial(stating, Check, {}, group="loop")


@dataclass(frozen=True)
class Broken:
    """A counterexample to a check.

    Attributes:
        where: The step after which two runs differ, as text.
        step: Index of that step.
        cause: The usual cause and the fix.
        differences: The arrays that differ, in order.
        seen: The observation, if it is not a difference of arrays.
        scale: The loss scale of the run that differs.
        fault: The seeded fault, with which the order of events is shown; None to show no order.
    """

    where: str
    step: int
    cause: str
    differences: Sequence[Difference] = ()
    seen: str = ""
    scale: float = 2.0**8
    fault: Fault | None = NOTHING
