"""What was observed of one run of a script, without the script's own objects, so that it can be
pickled.
"""

import re
from dataclasses import dataclass, field, replace

import torch

from ampsim.testing.lines import Place, is_users, shown
from ampsim.testing.script_checks.trace import (
    Event,
    OptimizerTrace,
    Save,
    ScalerTrace,
)
from ampsim.testing.script_checks.trial import TrialRecord


@dataclass
class Observation:
    """One run of a script, and its trials.

    Attributes:
        ended: Why it ended: "end", "enough", "time limit", "interrupted", or "error".
        error: Traceback of the script's own error.
        events: All calls, in their order.
        optimizers: Those that were seen.
        scalers: The enabled scalers that were seen.
        disabled: Where disabled scalers were created.
        saves: See `Recorder`, as precisions and scaled_reads.
        has_started: Whether enough steps were taken for the trials.
        can_fork: Whether trials could be forked.
        seconds: CPU time of the run.
        replaced: What the script got instead of what it asked for, as texts.
        outcomes: What was seen in each trial.
    """

    ended: str
    error: str
    events: list[Event]
    optimizers: list[OptimizerTrace]
    scalers: list[ScalerTrace]
    disabled: list[Place]
    saves: list[Save]
    precisions: set[str]
    scaled_reads: list[Place]
    has_started: bool
    can_fork: bool
    seconds: float
    replaced: tuple[str, ...] = ()
    outcomes: list[TrialRecord] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Number of steps of all optimizers, taken or skipped."""
        return sum(len(optimizer.attempts) for optimizer in self.optimizers)

    @property
    def error_message(self) -> str:
        """The last line of the script's own error; "" if it ended well."""
        return last_line(self.error)

    @property
    def error_place(self) -> str:
        """The innermost line of the script that raised its own error; "" if none did."""
        frames = re.findall(r'File "(.+)", line (\d+)', self.error)
        own = [f"{shown(file)}:{line}" for file, line in frames if is_users(file)]
        return own[-1] if own else ""

    @property
    def raised(self) -> str:
        """What the script raised, in which of its lines, and after how many steps; "" if it ended
        well.
        """
        if not self.error_message:
            return ""
        place = f" at {self.error_place}" if self.error_place else ""
        return (
            f"the script raised {self.error_message}{place}, after {self.steps} steps"
        )

    def of_kind(self, *kinds: str) -> list[Event]:
        """Return the events of these kinds."""
        return [event for event in self.events if event.kind in kinds]

    def optimizer(self, name: str) -> OptimizerTrace:
        """Return an optimizer by its name."""
        return next(each for each in self.optimizers if each.name == name)

    def outcome(self, kind: str) -> TrialRecord | None:
        """Return the outcome of the trial of a kind; None if it has none, or was killed."""
        outcomes = (each for each in self.outcomes if each.trial.kind == kind)
        return next((each for each in outcomes if each.ended != "killed"), None)


def last_line(traceback: str) -> str:
    """Return the line of a traceback that names the error; "" for none."""
    return traceback.strip().rpartition("\n")[2]


def without_objects(trace: OptimizerTrace) -> OptimizerTrace:
    """Return a trace that can be pickled, which knows whether its parameters have changed."""
    pairs = zip(trace.first, trace.parameters, strict=False)
    has_moved = any(not torch.equal(old, new) for old, new in pairs)
    return replace(trace, optimizer=None, scaler=None, first=[], has_moved=has_moved)
