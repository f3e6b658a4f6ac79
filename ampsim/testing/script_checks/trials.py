"""Run one iteration of a script several times from the same state: unchanged, at another scale,
with an overflow.

Theory of operation
-------------------
A trial starts at a call of `scaler.scale`, after each optimizer has taken a few steps. A fork copies the process, so
that each trial continues the script with the same model, data, and random numbers. A process that uses CUDA cannot be
forked; its script is checked with --on-cpu.

A window of an optimizer ends at the first `scale` after its step was attempted and its scaler
updated. So several complete passes per iteration, accumulation, and several optimizers need no case
of their own. A trial ends after two windows; the unchanged trial counts how many calls of `scale`
that is, and the others end at the same count. The last trial overflows in each of several windows,
for what a script does in some iterations only.
"""

import os
import pickle
import queue
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ampsim.testing.lines import Change, Lines, function, where
from ampsim.testing.script_checks.recorder import Recorder
from ampsim.testing.script_checks.snapshot import (
    SHAPES,
    Array,
    Snapshot,
    contents,
    is_averaged,
    sample,
    shift,
    take_snapshot,
    tensors_like,
)
from ampsim.testing.script_checks.trace import Event, OptimizerTrace

AFTER = 2  # steps that each optimizer has taken before the trials start
LATER = 105  # the same before the last trial is repeated; ema_pytorch copies in its first 100 steps
LATE = 12  # calls of `scale` after which the trials start at any one
LONGEST = 200  # calls of `scale` in a trial
# skipped steps of the last trial: averages are often updated in each 10th or 32nd step
IN_A_ROW = 34
PASSES = 2  # backward passes of a step that get an overflow: the first and the last
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "barrier", "all_gather")
is_cuda_used: Callable[[], bool] = (
    torch.cuda.is_initialized
)  # kept: it is replaced on the CPU


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
        return "-".join(
            [self.kind, *filter(None, [self.optimizer]), str(self.backward)]
        )


UNCHANGED = Trial("unchanged")


@dataclass
class Outcome:
    """What was seen in one trial; mappings are keyed by the names of optimizers.

    Attributes:
        trial: What was done.
        ended: "two windows", "end", or the error that the script raised; "killed" if it did not end
            in time.
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
    before: dict[str, Snapshot] = field(default_factory=dict)
    after: dict[str, Snapshot] = field(default_factory=dict)
    gradients: dict[str, list[Array]] = field(default_factory=dict)
    attempts: dict[str, list[bool]] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    seeded: dict[str, str] = field(default_factory=dict)
    reads: dict[str, list[float]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    averaged: set[str] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)


def plan(unchanged: Outcome) -> list[Trial]:
    """Return the trials that follow the unchanged one."""
    trials = [Trial("repeated"), Trial("scale")]
    for name, passes in unchanged.passes.items():
        last = {0, passes - 1} if passes > 1 else {0}
        trials += [Trial("gradient", name, index) for index in sorted(last)[:PASSES]]
    return [*trials, Trial("overflows")]


class Trials:
    """Starts the trials of a script, and watches the script in each of them.

    Attributes:
        folder: Where outcomes are written.
        has_started: Whether the trials were started, or would have been in a process that can fork.
        can_fork: Whether trials can be forks of the process.
        redirect: Returns where a checkpoint is written that the script saves at a path; None if its
            files are its own, to which trials write nothing.
        branch: Called in a fork with its name, so that its files are its own.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        """Prepare.

        Args:
            folder: For the outcomes.
            limit: Seconds for each trial.
        """
        self.folder, self.limit = folder, limit
        self.has_started = False
        self._starts: tuple[int, ...] = (AFTER, LATER)
        self.can_fork = sys.platform == "linux"
        self.redirect: Callable[[Any], Any] | None = None
        self.branch: Callable[[str], None] = lambda _: None
        self.recorder = Recorder(self)
        self._outcome: Outcome | None = None  # in a trial
        self._stepped: list[OptimizerTrace] = []
        self._marks: list[int] = []
        self._updates: dict[str, int] = {}
        self._first_place = ""
        self._factor = 1.0
        self._averages: dict[tuple[str, int], list[Array]] = {}
        self._next_look = 1
        self._reads: dict[tuple[str, object], list[float]] = defaultdict(list)

    @property
    def is_trial(self) -> bool:
        """Whether this process is a trial, from which nothing returns to the script's end."""
        return self._outcome is not None

    # ----------------------------------------------------------------------------------------- in
    # the script itself

    def before_scale(self) -> None:
        """Start the trials here, or end one."""
        if self._outcome is not None:
            self._look_for_end(self._outcome)
        elif self._starts and self.recorder.scales_since_attempt == 0:
            self._start_if_around()

    def _start_if_around(self) -> None:
        """Start where the loop comes around, as each optimizer of an iteration has stepped by then."""
        stepped = [
            trace for trace in self.recorder.optimizers.values() if trace.attempts
        ]
        if stepped and not self._first_place:
            self._first_place = where()
            return
        if self.recorder.scale_calls <= LATE and where() != self._first_place:
            return
        least = self._starts[0]
        is_ready = (t.attempts[-1] and sum(t.attempts) >= least for t in stepped)
        if not stepped or not all(is_ready):
            return
        self._starts = self._starts[1:]
        self._stepped, is_first = stepped, not self.has_started
        self.has_started = True
        self.can_fork = self.can_fork and not is_cuda_used()
        if self.can_fork and not is_first:
            self._fork(Trial("later"))
        elif self.can_fork and (unchanged := self._fork(UNCHANGED)):
            self._marks = unchanged.marks
            for trial in plan(unchanged):
                if not self.is_trial:
                    self._fork(trial)

    def _fork(self, trial: Trial) -> Outcome | None:
        """Run a trial in a copy of this process, and return its outcome; None in the copy."""
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            self._begin(trial)
            return None
        wait_or_kill(child, self.limit)
        path = self.folder / f"{trial}.trial"
        return pickle.loads(path.read_bytes()) if path.exists() else None  # noqa: S301

    # ---------------------------------------------------------------------------------------------------
    # in a trial

    def _begin(self, trial: Trial) -> None:
        _wait_for_no_thread()
        self.branch(str(trial))
        self._outcome = Outcome(trial)
        self._begun_at = time.monotonic()
        self._first_call, self._first_event = (
            self.recorder.scale_calls,
            len(self.recorder.events),
        )
        if trial.kind == "scale":
            scales = [trace.scale for trace in self.recorder.scalers.values()]
            self._multiply_scales(0.25 if min(scales) >= 16 else 4.0)
        elif trial != UNCHANGED:
            self._watch_lines(self._outcome)
        if trial.overflows:
            self._shift_averages()

    def _watch_lines(self, outcome: Outcome) -> None:
        """Note which lines change gradients, parameters, and averages."""
        watched: dict[str, Callable[[], object]] = {}
        for trace in self._stepped:
            alike = self._like(trace).values()
            averages = [tensor for tensors in alike for tensor in tensors]
            params = trace.parameters[-SHAPES:]
            watched[f"gradients of {trace.name}"] = partial(_gradients, params)
            watched[f"parameters of {trace.name}"] = partial(contents, params)
            watched[f"averages of {trace.name}"] = partial(contents, averages)
        lines = Lines(watched)
        outcome.changes = lines.changes
        lines.start()

    def _shift_averages(self) -> None:
        """Shift what may be an average, so that the average moves although the parameters do not."""
        for trace in self._stepped:
            for tensors in self._like(trace).values():
                for tensor in tensors:
                    shift(tensor)
        self._look_at_averages()

    def _look_at_averages(self) -> None:
        """Note the optimizers of which an average has moved since the last look."""
        for trace in self._stepped:
            for index, tensors in self._like(trace).items():
                news = [sample(tensor) for tensor in tensors]
                olds = self._averages.get((trace.name, index), [])
                if self._outcome and is_averaged(
                    sample(trace.trained[index]), olds, news
                ):
                    self._outcome.averaged.add(trace.name)
                self._averages[trace.name, index] = news

    def _like(self, trace: OptimizerTrace) -> dict[int, list[Tensor]]:
        return tensors_like(trace.trained, self.recorder.optimizers.values())

    def _multiply_scales(self, factor: float) -> None:
        self._factor = factor
        for trace in self.recorder.scalers.values():
            if isinstance(getattr(trace.scaler, "_scale", None), Tensor):
                trace.scaler._scale.mul_(factor)

    def _look_for_end(self, outcome: Outcome) -> None:
        number = self.recorder.scale_calls - self._first_call
        counts = [len(outcome.attempts.get(trace.name, ())) for trace in self._stepped]
        is_between = self.recorder.scales_since_attempt == 0
        if outcome.trial.overflows:
            # Half of the time is enough, as the parent kills what takes all of it.
            is_late = time.monotonic() > self._begun_at + self.limit / 2
            if is_between and min(counts) >= self._next_look:
                self._next_look *= 2
                self._look_at_averages()
            if number > LONGEST or is_late or (is_between and min(counts) >= IN_A_ROW):
                self.end("two windows")
            return
        for trace in self._stepped:
            is_over = self._is_updated(trace) or number >= (self._marks or [LONGEST])[0]
            if (
                is_over
                and trace.name in outcome.before
                and trace.name not in outcome.after
            ):
                outcome.after[trace.name] = self._snapshot(trace)
        is_whole = min(counts) > len(outcome.marks) and all(
            map(self._is_updated, self._stepped)
        )
        if outcome.trial == UNCHANGED and is_whole and is_between:
            outcome.marks.append(number)
        marks = outcome.marks if outcome.trial == UNCHANGED else self._marks
        if (len(marks) > 1 and number >= marks[-1]) or number > LONGEST:
            self.end("two windows")

    def _is_updated(self, trace: OptimizerTrace) -> bool:
        """Return whether an optimizer has attempted a step, and its scaler was updated since the
        last one.
        """
        updates = trace.scaler.updates if trace.scaler else 0
        return updates > self._updates.get(trace.name, updates)

    def after_backward(self, received: list[OptimizerTrace]) -> None:
        """Seed the inf of the trial in a gradient that has arrived."""
        outcome = self._outcome
        if outcome is None:
            return
        for trace in received:
            name, number = (
                trace.name,
                len(trace.passes) - 1,
            )  # since the gradients were cleared
            if name not in outcome.before:
                outcome.before[name] = self._snapshot(trace)
            is_target = outcome.trial.overflows
            if name not in outcome.attempts:
                outcome.passes[name] = number + 1
                is_target |= outcome.trial == Trial("gradient", name, number)
                if number == 0:
                    outcome.seeded.pop(name, None)
            if is_target and seed_inf(trace.parameters):
                place = self.recorder.events[-1].where
                seen = (
                    f"{place} an inf is set in the gradient of one parameter of {name}"
                )
                outcome.seeded[name] = seen

    def before_step(self, optimizer: OptimizerTrace) -> None:
        """Keep the gradients of a step."""
        outcome = self._outcome
        if outcome is not None and optimizer.name not in outcome.after:
            divisor = float(getattr(optimizer.optimizer, "grad_scale", None) or 1.0)
            grads = [sample(grad) / divisor for grad in optimizer.gradients]
            steps = outcome.gradients.setdefault(optimizer.name, [])
            steps.append(np.concatenate([*grads, []]))

    def after_attempt(self, optimizer: OptimizerTrace, *, taken: bool) -> None:
        """Note whether a step was taken."""
        if self._outcome is not None:
            self._outcome.attempts.setdefault(optimizer.name, []).append(taken)
            self._updates[optimizer.name] = (
                optimizer.scaler.updates if optimizer.scaler else -1
            )

    def after_update(self) -> None:
        """Move the scale at each update, so that gradients which wait across an update show another
        factor.
        """
        if self._outcome is not None and self._outcome.trial.kind == "scale":
            self._multiply_scales(1 / self._factor)

    def after_read(self, tensor: Tensor) -> None:
        """Keep a number that the script makes of a tensor."""
        outcome = self._outcome
        if outcome is None or tensor.numel() != 1 or not tensor.is_floating_point():
            return
        is_compared = outcome.trial.kind in ("unchanged", "scale")
        number = self.recorder.scale_calls - self._first_call
        if is_compared and number <= (self._marks or outcome.marks or [LONGEST])[0]:
            self._reads[where(), function()].append(float(tensor.detach()))

    def save_target(self, target: Any) -> Any:
        """Return where a checkpoint is written; None for nowhere."""
        if self.redirect is not None:
            return self.redirect(target)
        return None if self.is_trial else target

    def end(self, why: str) -> None:
        """In a trial, write the outcome and leave the process without the script's own cleaning up."""
        outcome = self._outcome
        if outcome is None:
            return
        sys.settrace(None)
        for trace in self._stepped:
            if trace.name in outcome.before and trace.name not in outcome.after:
                outcome.after[trace.name] = self._snapshot(trace)
        if outcome.trial.overflows:
            self._look_at_averages()
        events = self.recorder.events[self._first_event :]
        # A function that reads the scale may divide by it.
        readers = self.recorder.scale_readers
        reads = {
            place: each
            for (place, code), each in self._reads.items()
            if code not in readers
        }
        result = replace(outcome, ended=why, events=events, reads=reads)
        path = self.folder / f"{outcome.trial}.trial"
        path.write_bytes(pickle.dumps(result))
        os._exit(0)

    def _snapshot(self, trace: OptimizerTrace) -> Snapshot:
        return take_snapshot(trace, len(self.recorder.events) - self._first_event)


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


def _gradients(params: Sequence[Tensor]) -> object:
    grads = [param.grad for param in params if param.grad is not None]
    return contents([grad for grad in grads if grad.any()])


def seed_inf(params: Sequence[Tensor]) -> bool:
    """Set the last element of one gradient to inf; return whether there was a gradient to set."""
    for param in reversed(params):
        if param.grad is not None and param.grad.numel():
            grad = param.grad.detach()
            grad = grad._values() if grad.is_sparse else grad
            grad[(-1,) * grad.dim()] = torch.inf
            return True
    return False


def wait_or_kill(child: int, limit: float) -> None:
    """Wait for a process to end; kill it after so many seconds."""
    end = time.monotonic() + limit
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.005)
