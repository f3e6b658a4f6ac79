"""A check of training loops, and a counterexample to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ampsim.testing.check import Check, stating
from ampsim.testing.loop.state import Difference

CHECKS: dict[str, Check] = {}  # by name; see `ampsim.testing.loop.checks`
# Registers a function of a loop's maker and of batches, which returns a counterexample or None.
check: Callable[..., Callable[..., Check]] = partial(
    stating, Check, CHECKS, label="loop"
)


@dataclass(frozen=True)
class Broken:
    """A counterexample to a check.

    Attributes:
        where: The step after which two runs differ, as text.
        cause: The usual cause and the fix.
        differences: The arrays that differ, in order.
        seen: The observation, if it is not a difference of arrays.
    """

    where: str
    cause: str
    differences: Sequence[Difference] = ()
    seen: str = ""
