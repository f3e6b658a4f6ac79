"""Trials of a script, and what is seen in each of them."""

import math
from dataclasses import dataclass, field
from typing import Literal

from ampsim.testing.lines import Change, Place
from ampsim.testing.script_checks.snapshot import Array, Snapshot
from ampsim.testing.script_checks.trace import Event


@dataclass(frozen=True)
class Trial:
    """What is done in one trial.

    Attributes:
        kind: "unchanged", "repeated" (unchanged again), "scale" (another loss scale), "gradient"
            (one inf in a gradient), "overflows" (an inf in each window), or "later" (the same).
        optimizer: Name of the optimizer whose gradient gets the inf.
        backward: Index of the backward pass that gets it.
    """

    kind: Literal["unchanged", "repeated", "scale", "gradient", "overflows", "later"]
    optimizer: str = ""
    backward: int = 0

    @property
    def overflows(self) -> bool:
        """Whether each window overflows."""
        return self.kind in ("overflows", "later")

    def __str__(self) -> str:
        return f"{self.kind}-{self.optimizer}-{self.backward}"


@dataclass
class TrialRecord:
    """What was seen in one trial; mappings are keyed by the names of optimizers.

    Attributes:
        trial: What was done.
        ended: "two windows", or as of an `Observation`; "killed" if it did not end in time.
        error: What the script raised: the last line of its traceback.
        before: When the first gradient of the trial had arrived.
        after: At the end of the first window, or of the last one if each overflows.
        gradients: For each step of the first window, the first elements of each gradient, unscaled.
        attempts: For each step, whether it was taken.
        passes: Number of backward passes whose gradients the first step uses.
        seeded: Where the inf was seeded.
        reads: By place, the numbers that the script made of tensors in the first window.
        events: The calls of the script.
        marks: Number of calls of `scale` at the end of each window.
        averaged: Optimizers of which an average has moved, while each window overflowed.
        changes: Lines that change "gradients", "parameters", or "averages" of an optimizer; `what`
            ends in its name.
    """

    trial: Trial
    ended: str = "killed"
    error: str = ""
    before: dict[str, Snapshot] = field(default_factory=dict)
    after: dict[str, Snapshot] = field(default_factory=dict)
    gradients: dict[str, list[Array]] = field(default_factory=dict)
    attempts: dict[str, list[bool]] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    seeded: dict[str, str] = field(default_factory=dict)
    reads: dict[Place, list[float]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    averaged: set[str] = field(default_factory=set)
    changes: dict[Change, None] = field(default_factory=dict)

    def scale(self, name: str) -> float:
        """Return the loss scale when the first gradient of an optimizer had arrived."""
        return self.before[name].scale if name in self.before else math.nan

    def lines(self, what: str) -> list[Place]:
        """Return the lines of the script that change something, beside torch's own calls."""
        known = {event.where.user for event in self.events}
        places = [change.where for change in self.changes if change.what == what]
        return [place for place in places if place.user not in known]

    def calls(self, name: str, number: int = 0) -> list[Event]:
        """Return the calls that concern one step of an optimizer, since its last one, and the
        update after it.
        """
        calls: list[Event] = []
        steps = 0
        for event in self.events:
            is_own = name in event.optimizers
            if steps > number and event.kind == "update":
                return [*calls, event]
            if event.kind == "update" or (is_own and steps <= number):
                calls.append(event)
            if is_own and "step" in event.kind:
                if steps < number:
                    calls = []
                steps += 1
        return calls


def plan(unchanged: TrialRecord) -> list[Trial]:
    """Return the trials that follow the unchanged one."""
    trials = [Trial("repeated"), Trial("scale")]
    for name, passes in unchanged.passes.items():
        trials.append(Trial("gradient", name, 0))
        if passes > 1:
            trials.append(Trial("gradient", name, passes - 1))
    return [*trials, Trial("overflows")]
