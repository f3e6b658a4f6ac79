"""A check of training loops, and what breaking it looks like."""

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
        where: the step after which two runs differ, in words.
        step: its index.
        differences: the arrays that differ, the first one first.
        scale: by what the scale of one run was larger than that of the other; 1 where both had one scale.
        cause: the usual one, where the check knows it without the names of arrays; in words, with the cure.
        seen: what was seen, where it is no difference of arrays.
        fault: what was planted.
        places: of the batches before the skipped ones, of those, and of the ones after them.
    """

    where: str
    step: int
    differences: Sequence[Difference] = ()
    scale: float = 1.0
    cause: str = ""
    seen: str = ""
    fault: Fault | None = None
    places: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, kw_only=True)
class LoopCheck(Check):
    """One check of loops, whose function says how it is broken on batches, or None if it holds.

    Attributes:
        shrinks: whether a counterexample may be looked for in fewer batches.
    """

    group: str = "loop"
    shrinks: bool = True


def check(
    issue: str, *, shrinks: bool = True
) -> Callable[[Callable[[Make, Sequence[Batch]], Broken | None]], LoopCheck]:
    """Make a check of a function: its name and the first paragraph of its docstring are the check's.

    Args:
        issue: address of a public report of a loop that broke it.
        shrinks: whether it says the same of fewer batches.
    """
    return stating(LoopCheck, {}, issue=issue, shrinks=shrinks)
