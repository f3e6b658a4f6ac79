"""Watch a script in a trial, and end the process when the trial has shown enough.

A window of an optimizer ends at the first `scale` after its step was attempted and its scaler
updated. So several complete passes per iteration, accumulation, and several optimizers need no case
of their own. A trial ends after two windows; the unchanged trial counts how many calls of `scale`
that is, and the others end at the same count. A trial in which each window overflows lasts longer,
for what a script does in some iterations only.
"""

import io
import os
import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ampsim.testing.lines import LineTracer, Place, running_code, where
from ampsim.testing.script_checks.recorder import Listener, Recorder
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
from ampsim.testing.script_checks.trace import OptimizerTrace
from ampsim.testing.script_checks.trial import Trial, TrialRecord

if TYPE_CHECKING:
    from ampsim.testing.script_checks.redirect import Redirection

LONGEST = 200  # calls of `scale` in a trial
# Skipped steps if each window overflows: averages are often updated in each 10th or 32nd step.
IN_A_ROW = 34
FACTOR = 0.25  # of the scale in the trial at another one; its inverse for a small scale
SMALL = 16.0


class TrialRun(Listener):
    """A trial in which at most one window overflows.

    Attributes:
        outcome: What was seen so far.
    """

    def __init__(
        self,
        trial: Trial,
        recorder: Recorder,
        optimizers: Sequence[OptimizerTrace],
        marks: list[int],
        folder: Path,
    ) -> None:
        """Prepare.

        Args:
            trial: What to do.
            recorder: The record of the script, which tells this object of each moment from now on.
            optimizers: Those that have stepped.
            marks: See `TrialRecord`; [] in the unchanged trial, which finds them.
            folder: For the outcome.
        """
        self.outcome = TrialRecord(trial)
        self.trial = trial
        self.recorder = recorder
        self.folder = folder
        self.optimizers = optimizers
        self._marks = marks or self.outcome.marks
        self.redirection: Redirection | None = None
        self._first_call = recorder.scale_calls
        self._first_event = len(recorder.events)
        self._updates: dict[str, int] = {}  # of the scaler at the last attempt
        self._factor = 1.0  # of the scale, beside the scale without this trial
        self._reads: dict[tuple[Place, object], list[float]] = defaultdict(list)

    def begin(self) -> None:
        """Change what the trial changes, and watch from here on."""
        self.recorder.listener = self
        if self.trial.kind == "scale":
            least = min(trace.scale for trace in self.recorder.scalers.values())
            self._multiply_scales(1 / FACTOR if least < SMALL else FACTOR)
        elif self.trial.kind != "unchanged":
            self._watch_lines()

    def _watch_lines(self) -> None:
        """Note which lines change gradients, parameters, and averages."""
        watched: dict[str, Callable[[], object]] = {}
        for trace in self.optimizers:
            averages = [*chain(*self._like(trace).values())]
            params = trace.parameters[-SHAPES:]
            watched[f"gradients of {trace.name}"] = partial(_gradients, params)
            watched[f"parameters of {trace.name}"] = partial(contents, params)
            watched[f"averages of {trace.name}"] = partial(contents, averages)
        tracer = LineTracer(watched)
        self.outcome.changes = tracer.changes
        tracer.start()

    def _like(self, trace: OptimizerTrace) -> dict[int, list[Tensor]]:
        return tensors_like(trace.trained, self.recorder.optimizers.values())

    def _multiply_scales(self, factor: float) -> None:
        self._factor = factor
        for trace in self.recorder.scalers.values():
            if isinstance(getattr(trace.scaler, "_scale", None), Tensor):
                trace.scaler._scale.mul_(factor)

    # ----------------------------------------------------------------------------------------------
    # moments

    @property
    def _calls(self) -> int:
        """Number of calls of `scale` in this trial."""
        return self.recorder.scale_calls - self._first_call

    @property
    def _first_mark(self) -> int:
        return self._marks[0] if self._marks else LONGEST

    @property
    def _is_between(self) -> bool:
        """Whether no loss was scaled since the last step."""
        return self.recorder.scales_since_attempt == 0

    def _steps(self) -> int:
        """Return the number of steps that each optimizer has attempted."""
        attempts = self.outcome.attempts
        return min(len(attempts.get(trace.name, ())) for trace in self.optimizers)

    def before_scale(self) -> None:
        """End windows, and after two of them the trial."""
        outcome = self.outcome
        number = self._calls
        for trace in self.optimizers:
            if self._is_updated(trace) or number >= self._first_mark:
                self._end_window(trace)
        if self.trial.kind == "unchanged" and self._is_between:
            has_stepped = self._steps() > len(outcome.marks)
            if has_stepped and all(map(self._is_updated, self.optimizers)):
                outcome.marks.append(number)
        is_second = len(self._marks) > 1 and number >= self._marks[-1]
        if is_second or number > LONGEST:
            self.end("two windows")

    def _end_window(self, trace: OptimizerTrace) -> None:
        outcome = self.outcome
        name = trace.name
        if name in outcome.before and name not in outcome.after:
            outcome.after[name] = self._snapshot(trace)

    def _is_updated(self, trace: OptimizerTrace) -> bool:
        """Return whether an optimizer has attempted a step, and its scaler was updated since the
        last one.
        """
        updates = trace.scaler.updates if trace.scaler else 0
        return updates > self._updates.get(trace.name, updates)

    def after_backward(self, received: list[OptimizerTrace]) -> None:
        """Seed the inf of the trial in a gradient that has arrived."""
        outcome = self.outcome
        for trace in received:
            name = trace.name
            number = len(trace.passes) - 1  # since the gradients were cleared
            if name not in outcome.before:
                outcome.before[name] = self._snapshot(trace)
            if name not in outcome.attempts:
                outcome.passes[name] = number + 1
                if number == 0:
                    outcome.seeded.pop(name, None)
            if self._is_target(name, number) and seed_inf(trace.parameters):
                place = self.recorder.events[-1].where
                seen = f"an inf is set in the gradient of one parameter of {name}"
                outcome.seeded[name] = f"{place} {seen}"

    def _is_target(self, name: str, number: int) -> bool:
        """Return whether a backward pass gets the inf, the how many-th of a window."""
        is_first_window = name not in self.outcome.attempts
        return is_first_window and self.trial == Trial("gradient", name, number)

    def before_step(self, optimizer: OptimizerTrace) -> None:
        """Keep the gradients of a step."""
        outcome = self.outcome
        if optimizer.name not in outcome.after:
            divisor = float(getattr(optimizer.optimizer, "grad_scale", None) or 1.0)
            grads = [sample(grad) / divisor for grad in optimizer.gradients]
            steps = outcome.gradients.setdefault(optimizer.name, [])
            steps.append(np.concatenate([*grads, []]))

    def after_attempt(self, optimizer: OptimizerTrace, *, taken: bool) -> None:
        """Note whether a step was taken."""
        self.outcome.attempts.setdefault(optimizer.name, []).append(taken)
        scaler = optimizer.scaler
        self._updates[optimizer.name] = scaler.updates if scaler else -1

    def after_update(self) -> None:
        """Move the scale at each update, so that gradients which wait across an update show another
        factor.
        """
        if self.trial.kind == "scale":
            self._multiply_scales(1 / self._factor)

    def after_read(self, tensor: Tensor) -> None:
        """Keep a number that the script makes of a tensor."""
        is_number = tensor.numel() == 1 and tensor.is_floating_point()
        is_compared = self.trial.kind in ("unchanged", "scale")
        if is_number and is_compared and self._calls <= self._first_mark:
            self._reads[where(), running_code()].append(float(tensor.detach()))

    def save_target(self, target: Any) -> Any:
        """Return where a checkpoint is written: nowhere if files are not redirected."""
        return self.redirection.to_write(target) if self.redirection else io.BytesIO()

    def end(self, why: str, error: str = "") -> None:
        """Write the outcome and leave the process without the script's own cleaning up."""
        sys.settrace(None)
        outcome = self.outcome
        for trace in self.optimizers:
            self._end_window(trace)
        outcome.ended = why
        outcome.error = error
        outcome.events = self.recorder.events[self._first_event :]
        for (place, code), numbers in self._reads.items():
            # A function that reads the scale may divide by it.
            if code not in self.recorder.scale_readers:
                outcome.reads[place] = numbers
        path = self.folder / f"{self.trial}.trial"
        path.write_bytes(pickle.dumps(outcome))
        os._exit(0)

    def _snapshot(self, trace: OptimizerTrace) -> Snapshot:
        return take_snapshot(trace, len(self.recorder.events) - self._first_event)


class OverflowsRun(TrialRun):
    """A trial in which each window overflows."""

    def __init__(self, *args: Any, limit: float) -> None:
        """Prepare.

        Args:
            args: See `TrialRun`.
            limit: Seconds, after half of which the trial ends: the parent kills what takes all.
        """
        super().__init__(*args)
        self._latest = time.monotonic() + limit / 2
        self._averages: dict[tuple[str, int], list[Array]] = {}
        self._next_look = 1  # step before which averages are looked at

    def begin(self) -> None:
        """Shift what may be an average, so that it moves although the parameters do not."""
        for trace in self.optimizers:
            for tensors in self._like(trace).values():
                for tensor in tensors:
                    shift(tensor)
        self._look_at_averages()
        super().begin()

    def before_scale(self) -> None:
        """Look at averages now and then, and end the trial after many windows."""
        steps = self._steps() if self._is_between else 0
        if steps >= self._next_look:
            # An average that moves fast is there after a few steps, and a slow one moves further.
            self._next_look *= 2
            self._look_at_averages()
        is_late = self._calls > LONGEST or time.monotonic() > self._latest
        if is_late or steps >= IN_A_ROW:
            self.end("two windows")

    def _look_at_averages(self) -> None:
        """Note the optimizers of which an average has moved since the last look."""
        for trace in self.optimizers:
            for index, tensors in self._like(trace).items():
                news = [sample(tensor) for tensor in tensors]
                olds = self._averages.get((trace.name, index), [])
                if is_averaged(sample(trace.trained[index]), olds, news):
                    self.outcome.averaged.add(trace.name)
                self._averages[trace.name, index] = news

    def _is_target(self, name: str, number: int) -> bool:
        return True

    def end(self, why: str, error: str = "") -> None:
        self._look_at_averages()
        super().end(why, error)


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
