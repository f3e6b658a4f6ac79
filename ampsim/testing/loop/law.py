"""A law of training loops, and what breaking it looks like."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ampsim.testing.loop.runs import Batch, Make
from ampsim.testing.loop.state import Difference


@dataclass(frozen=True)
class Broken:
    """A counterexample to a law.

    Attributes:
        where: the step after which two runs differ, in words.
        step: its index.
        differences: the arrays that differ, the first one first.
        scale: by what the scale of one run was larger than that of the other; 1 where both had one scale.
        pattern: which of the patterns that belong to the law was seen, where that is known without the arrays.
        seen: what was seen, where it is no difference of arrays.
    """

    where: str
    step: int
    differences: Sequence[Difference] = ()
    scale: float = 1.0
    pattern: str = ""
    seen: str = ""


@dataclass(frozen=True)
class NotAsked:
    """A reason why a law says nothing about a loop."""

    reason: str


Verdict = Broken | NotAsked | None


@dataclass(frozen=True)
class Law:
    """One law: its name, what must be true, and a function that looks for a counterexample."""

    name: str
    law: str = field(repr=False)
    function: Callable[[Make, Sequence[Batch]], Verdict] = field(repr=False)
    issue: str = ""

    def __call__(self, make: Make, batches: Sequence[Batch]) -> Verdict:
        """Return how the law is broken on these batches, why it is not asked, or None if it holds."""
        return self.function(make, batches)


def law(issue: str) -> Callable[[Callable[[Make, Sequence[Batch]], Verdict]], Law]:
    """Make a law of a function: its name and the first paragraph of its docstring are the law's."""

    def register(function: Callable[[Make, Sequence[Batch]], Verdict]) -> Law:
        statement = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        return Law(function.__name__, statement, function, issue)

    return register
