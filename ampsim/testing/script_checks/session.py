"""A run of a script under instrumentation, from its first call until enough was seen."""

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ampsim.testing.script_checks.observation import Observation, without_objects
from ampsim.testing.script_checks.trials import Outcome, Trials

IDLE = 20  # calls of `scale` per wanted step, after which a script without steps has shown enough


class Session(Trials):
    """Records a script, makes its trials, and tells when enough was seen."""

    def __init__(
        self, folder: Path, *, steps: int, limit: float, on_enough: Callable[[], None]
    ) -> None:
        """Prepare a session.

        Args:
            folder: For the outcomes of trials.
            steps: Steps of one optimizer after which enough was seen; at least 1.
            limit: Seconds for each trial.
            on_enough: Called once enough was seen.
        """
        super().__init__(folder, limit)
        self.steps, self._on_enough = steps, on_enough
        self._begun = time.process_time()

    def before_scale(self) -> None:
        super().before_scale()
        steps = [len(trace.attempts) for trace in self.recorder.optimizers.values()]
        is_enough = max(steps, default=0) >= self.steps
        is_idle = self.recorder.scale_calls >= IDLE * self.steps
        if not self.is_trial and (is_enough or is_idle):
            self._on_enough()

    def observation(
        self, ended: str, error: str = "", replaced: Sequence[str] = ()
    ) -> Observation:
        """Return what was seen; in a trial, write its outcome and leave the process.

        Args:
            ended: See `Observation`, as error and replaced.
            error: Traceback.
            replaced: Texts.
        """
        self.end(error.strip().rpartition("\n")[2] if error else ended)
        recorder = self.recorder
        optimizers, scalers = recorder.optimizers.values(), recorder.scalers.values()
        return Observation(
            ended=ended,
            error=error,
            events=recorder.events,
            optimizers=[without_objects(trace) for trace in optimizers],
            scalers=[replace(trace, scaler=None) for trace in scalers],
            disabled=recorder.disabled,
            saves=recorder.saves,
            precisions=recorder.precisions,
            scaled_reads=recorder.scaled_reads,
            has_started=self.has_started,
            can_fork=self.can_fork,
            seconds=time.process_time() - self._begun,
            replaced=tuple(replaced),
            outcomes=read_outcomes(self.folder),
        )


def read_outcomes(folder: Path) -> list[Outcome]:
    """Return the outcomes that trials have written to a folder."""
    files = sorted(folder.glob("*.trial"))
    return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301
