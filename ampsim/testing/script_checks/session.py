"""A run of a script under instrumentation, from its first call until enough was seen.

Theory of operation
-------------------
One iteration is run several times from the same state: unchanged, at another scale, with an
overflow. A trial starts at a call of `scaler.scale`, after each optimizer has taken a few steps. A
fork copies the process, so that each trial continues the script with the same model, data, and
random numbers. A process that uses CUDA cannot be forked; its script is checked with --on-cpu.
"""

import os
import pickle
import queue
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ampsim.testing.lines import Place, where
from ampsim.testing.script_checks.observation import (
    Observation,
    last_line,
    without_objects,
)
from ampsim.testing.script_checks.recorder import Listener, Recorder
from ampsim.testing.script_checks.trace import OptimizerTrace
from ampsim.testing.script_checks.trial import Trial, TrialRecord, plan
from ampsim.testing.script_checks.trial_run import OverflowsRun, TrialRun

if TYPE_CHECKING:
    from ampsim.testing.script_checks.redirect import Redirection

AFTER = 2  # steps that each optimizer has taken before the trials start
LATER = 105  # the same before the last trial is repeated; ema_pytorch copies in its first 100 steps
LATE = 12  # calls of `scale` after which the trials start at any one
IDLE = 20  # calls of `scale` per wanted step, after which a script without steps has shown enough
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "barrier", "all_gather")
# Kept, as it is replaced on the CPU.
is_cuda_used: Callable[[], bool] = torch.cuda.is_initialized


class Session(Listener):
    """Records a script, starts its trials, and tells when enough was seen.

    Attributes:
        has_started: Whether the trials were started, or would have been in a process that can fork.
        can_fork: Whether trials can be forks of the process.
        redirection: Of the files that the script writes; None if they are not redirected.
    """

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
        self.folder = folder
        self.steps = steps
        self.limit = limit
        self._on_enough = on_enough
        self.has_started = False
        self.can_fork = sys.platform == "linux"
        self.redirection: Redirection | None = None
        self.recorder = Recorder(self)
        self._begun = time.process_time()
        self._starts: tuple[int, ...] = (AFTER, LATER)
        self._first_place: Place | None = None

    @property
    def _is_trial(self) -> bool:
        """Whether this process is a trial, in which another listener goes on."""
        return self.recorder.listener is not self

    def before_scale(self) -> None:
        """Start trials here, or say that enough was seen."""
        recorder = self.recorder
        if self._starts and recorder.scales_since_attempt == 0 and self._comes_around():
            self._start()
        # A fork returns in two processes, and both come back here.
        if self._is_trial:
            return
        steps = [len(trace.attempts) for trace in recorder.optimizers.values()]
        is_enough = max(steps, default=0) >= self.steps
        is_idle = recorder.scale_calls >= IDLE * self.steps
        if is_enough or is_idle:
            self._on_enough()

    def _stepped(self) -> list[OptimizerTrace]:
        return [each for each in self.recorder.optimizers.values() if each.attempts]

    def _comes_around(self) -> bool:
        """Return whether each optimizer of an iteration has stepped often enough by now."""
        stepped = self._stepped()
        if stepped and not self._first_place:
            self._first_place = where()
            return False
        is_at_start = where() == self._first_place
        if not is_at_start and self.recorder.scale_calls <= LATE:
            return False
        least = self._starts[0]
        is_ready = (t.attempts[-1] and sum(t.attempts) >= least for t in stepped)
        return bool(stepped) and all(is_ready)

    def _start(self) -> None:
        is_first = not self.has_started
        self.has_started = True
        self._starts = self._starts[1:]
        self.can_fork = self.can_fork and not is_cuda_used()
        if self.can_fork and not is_first:
            self._fork(Trial("later"), [])
        elif self.can_fork and (unchanged := self._fork(Trial("unchanged"), [])):
            self._fork_each(plan(unchanged), unchanged.marks)

    def _fork_each(self, trials: Sequence[Trial], marks: list[int]) -> None:
        """Run trials one after the other; in the copy that is one of them, only go on."""
        for trial in trials:
            self._fork(trial, marks)
            if self._is_trial:
                return

    def _fork(self, trial: Trial, marks: list[int]) -> TrialRecord | None:
        """Run a trial in a copy of this process, and return its outcome; None in the copy."""
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            self._begin(trial, marks)
            return None
        wait_or_kill(child, self.limit)
        path = self.folder / f"{trial}.trial"
        return pickle.loads(path.read_bytes()) if path.exists() else None  # noqa: S301

    def _begin(self, trial: Trial, marks: list[int]) -> None:
        """Go on as a trial."""
        _wait_for_no_thread()
        if self.redirection:
            self.redirection.branch(str(trial))
        given = trial, self.recorder, self._stepped(), marks, self.folder
        if trial.overflows:
            run: TrialRun = OverflowsRun(*given, limit=self.limit)
        else:
            run = TrialRun(*given)
        run.redirection = self.redirection
        run.begin()

    def save_target(self, target: Any) -> Any:
        """Return where a checkpoint is written."""
        return self.redirection.to_write(target) if self.redirection else target

    def observation(
        self, ended: str, error: str = "", replaced: Sequence[str] = ()
    ) -> Observation:
        """Return what was seen; in a trial, write its outcome and leave the process.

        Args:
            ended: See `Observation`, as error and replaced.
            error: Traceback.
            replaced: Texts.
        """
        recorder = self.recorder
        recorder.listener.end(ended, last_line(error))
        optimizers = recorder.optimizers.values()
        scalers = recorder.scalers.values()
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


def read_outcomes(folder: Path) -> list[TrialRecord]:
    """Return the outcomes that trials have written to a folder."""
    files = sorted(folder.glob("*.trial"))
    return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301


def _wait_for_no_thread() -> None:
    """Replace what waits for threads, which are not forked: those of a process group, and readers
    of a queue.
    """
    for name in COLLECTIVES:
        if hasattr(torch.distributed, name):
            setattr(torch.distributed, name, lambda *_, **__: None)
    put = queue.Queue.put

    def put_always(self: Any, *args: Any, **kwargs: Any) -> None:
        self.maxsize = 0
        put(self, *args, **kwargs)

    setattr(queue.Queue, "put", put_always)  # noqa: B010
    setattr(queue.Queue, "join", lambda _: None)  # noqa: B010


def wait_or_kill(child: int, limit: float) -> None:
    """Wait for a process to end; kill it after so many seconds."""
    end = time.monotonic() + limit
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.005)
