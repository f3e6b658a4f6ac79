"""A law of training loops, and what breaking it looks like."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampsim.testing.law import Law, stating
from ampsim.testing.loop.run import Fault
from ampsim.testing.loop.runs import Batch, Make
from ampsim.testing.loop.state import Difference

# What a law itself saw, for the table of causes.
POWER = "multiplied by a power of the scale"
ALIKE = "multiplied by one factor"
GROWS = "only while the scale grows"
STEPPED = "the planted inf was stepped with"
MIXED = "neither skipped nor as a clean step"
POISONED = "an inf of the loss is kept"
KEPT = "the scale did not fall"
HIDDEN = "equal after the skipped step, and not after the next one"
SAVING = "saving alone"
LOADING = "loading raised"
UNNAMED = "more is carried than state names"
WINDOW = "the place in a step of several batches is saved, and their gradients are not"
VERDICT = "another verdict or scale"
MEAN, APART = "alike on all ranks, and not as on one", "not alike on all ranks"
WAITS, COUNTED = "a rank waits for ever", "another count of steps"
OTHER, JUMPS, AGAIN = "another scaler", "changed between updates", "more updates than steps"
STILL = "never moves"
SKIPPED, STUCK, UNREACHED = "all steps skipped", "gradients and no move", "no gradient"


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
        fault: what was planted.
        places: of the batches before the skipped ones, of those, and of the ones after them.
    """

    where: str
    step: int
    differences: Sequence[Difference] = ()
    scale: float = 1.0
    pattern: str = ""
    seen: str = ""
    fault: Fault | None = None
    places: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class NotAsked:
    """A reason why a law says nothing about a loop."""

    reason: str


Verdict = Broken | NotAsked | None


@dataclass(frozen=True, kw_only=True)
class LoopLaw(Law):
    """One law of loops, whose function says how it is broken on batches, why it is not asked, or None if it holds.

    Attributes:
        shrinks: whether a counterexample may be looked for in fewer batches.
    """

    group: str = "loop"
    shrinks: bool = True


def law(issue: str, *, shrinks: bool = True) -> Callable[[Callable[[Make, Sequence[Batch]], Verdict]], LoopLaw]:
    """Make a law of a function: its name and the first paragraph of its docstring are the law's.

    Args:
        issue: address of a public report of a loop that broke it.
        shrinks: whether it says the same of fewer batches.
    """
    return stating(LoopLaw, {}, issue=issue, shrinks=shrinks)
