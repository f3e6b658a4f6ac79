"""What was observed of one run of a script, without the script's own objects, so that it can be pickled."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampsim.testing.script_checks.recorder import Recorder
from ampsim.testing.script_checks.trace import (
    STANDARD,
    Event,
    OptimizerTrace,
    Violation,
    is_scripts,
    shown,
)
from ampsim.testing.script_checks.trials import Outcome, Start


@dataclass(frozen=True)
class OptimizerSummary:
    """One optimizer at the end of the run.

    Attributes:
        name: Its class, and its place among the optimizers.
        where: Where it was created or first seen.
        attempts: One per step: whether it was taken.
        schedules: Number of steps of learning rate schedules.
        has_gradients: Whether gradients have arrived.
        has_moved: Whether its parameters have changed.
        is_loaded: Whether a checkpoint was loaded into it.
    """

    name: str
    where: str
    attempts: list[bool]
    schedules: int
    has_gradients: bool
    has_moved: bool
    is_loaded: bool


@dataclass
class Observation:
    """One run of a script, and its trials.

    Attributes:
        ended: Why it ended: "end", "enough", "time limit", or "error".
        error: Traceback of the script's own error.
        events: All calls, in their order.
        violations: Calls in the wrong order.
        optimizers: Those that were seen.
        scalers: Names of the enabled scalers that were seen.
        loaded_scalers: Those into which a checkpoint was loaded.
        disabled: Where disabled scalers were created.
        saved: By folder, what checkpoints there hold, with the call that saved it.
        loaded: What the script has loaded from checkpoints, with the call.
        unloaded: Where the sources load an optimizer, if they load no scaler.
        autocasts: By dtype, where autocast was first entered.
        scale_reads: Where the script reads the loss scale.
        start: Where the trials started; None if they did not.
        can_fork: Whether trials were forks.
        seconds: CPU time of the run.
        replaced: What the script got instead of what it asked for, as texts.
        outcomes: What was seen in each trial.
    """

    ended: str
    error: str
    events: list[Event]
    violations: list[Violation]
    optimizers: list[OptimizerSummary]
    scalers: list[str]
    loaded_scalers: list[str]
    disabled: list[str]
    saved: dict[str, dict[str, Event]]
    loaded: dict[str, Event]
    unloaded: str
    autocasts: dict[str, str]
    scale_reads: set[str]
    start: Start | None
    can_fork: bool
    seconds: float
    replaced: tuple[str, ...] = ()
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def stepped(self) -> list[OptimizerSummary]:
        """The optimizers that have stepped."""
        return [optimizer for optimizer in self.optimizers if optimizer.attempts]

    @property
    def steps(self) -> int:
        """Number of steps of all optimizers, taken or skipped."""
        return sum(len(optimizer.attempts) for optimizer in self.optimizers)

    @property
    def raised(self) -> str:
        """What the script raised, in which of its lines, and after how many steps; "" if it ended well."""
        frames = re.findall(r'File "(.+)", line (\d+)', self.error)
        own = [f"{shown(file)}:{line}" for file, line in frames if is_scripts(file)]
        place = f" at {own[-1]}" if own else ""
        text = self.error.strip().rpartition("\n")[2]
        return f"the script raised {text}{place}, after {self.steps} steps" if text else ""

    def of_kind(self, *kinds: str) -> list[Event]:
        """Return the events of these kinds."""
        return [event for event in self.events if event.kind in kinds]

    def outcome(self, kind: str) -> Outcome | None:
        """Return the outcome of the trial of a kind; None if it has none."""
        return next((outcome for outcome in self.outcomes if outcome.trial.kind == kind), None)


def observe(recorder: Recorder, ended: str, error: str, **rest: Any) -> Observation:
    """Return what a recorder has seen."""
    scalers = recorder.scalers.values()
    return Observation(
        ended=ended,
        error=error,
        events=recorder.events,
        violations=recorder.violations,
        optimizers=[_summary(trace) for trace in recorder.optimizers.values()],
        scalers=[trace.name for trace in scalers],
        loaded_scalers=[trace.name for trace in scalers if trace.is_loaded],
        disabled=recorder.disabled,
        saved=dict(recorder.saved),
        loaded=recorder.loaded,
        unloaded=_unloaded(recorder),
        autocasts=recorder.autocasts,
        scale_reads=recorder.scale_reads,
        **rest,
    )


def _summary(trace: OptimizerTrace) -> OptimizerSummary:
    return OptimizerSummary(
        name=trace.name,
        where=trace.where,
        attempts=trace.attempts,
        schedules=trace.schedules,
        has_gradients=trace.first is not None,
        has_moved=trace.has_moved,
        is_loaded=trace.is_loaded,
    )


# ----------------------------------------------------------------------------------------- what the sources load


def _unloaded(recorder: Recorder) -> str:
    """Return where the sources load an optimizer's state, if they load no scaler's; "" otherwise."""
    scalers = _all_variables(recorder.scalers.values())
    optimizers = _all_variables(recorder.optimizers.values())
    loads = [load for file in _sources() for load in _loads(file)]
    # A helper may know the scaler by a name that it has nowhere else.
    if any(name in scalers or re.search("scal|amp", name.lower()) for name, _ in loads):
        return ""
    return next((place for name, place in loads if name in optimizers), "")


def _all_variables(traces: Iterable[Any]) -> set[str]:
    return {name for trace in traces for name in trace.variables}


def _sources() -> list[Path]:
    """Return the files of the script and of its own modules."""
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    paths = {Path(file) for file in [*files, sys.argv[0]] if isinstance(file, str)}
    is_own = (
        path.suffix == ".py" and "-packages" not in str(path) and not str(path).startswith(STANDARD)
        for path in paths
    )
    own = [path for path, owned in zip(paths, is_own, strict=True) if owned and path.is_file()]
    return sorted(path for path in own if "ampsim" not in path.parts)


def _loads(file: Path) -> Iterator[tuple[str, str]]:
    """Yield what ``load_state_dict`` is called on, as its last name, and where."""
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="load_state_dict")):
                name = ast.unparse(owner).rpartition(".")[2]
                yield name, f"{shown(str(file))}:{node.lineno}"
