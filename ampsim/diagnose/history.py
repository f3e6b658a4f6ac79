"""What is known of a run's loss scale, whoever wrote it down: the one form that readers make and findings take."""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ENTRIES = 2**18
"""Entries that are kept one by one; of a longer run, neighbours are merged, so that memory has a bound."""

CHANGES = 2**15
"""Changes of the scale that are kept; of more, the latest."""
EVENTS = 1_000
"""Skipped steps whose parameters are kept, and alarms."""

Floats = npt.NDArray[np.float64]


class Change(NamedTuple):
    """A change of the loss scale, between two entries of the run."""

    after: int
    """The last step that is known to have had the old scale."""
    step: int
    """The first step that is known to have the new one."""
    old: float
    new: float

    @property
    def fell(self) -> bool:
        """Whether the new scale is lower."""
        return self.new < self.old

    @property
    def halvings(self) -> float:
        """The log2 of old over new; 0 counts as half of float32's smallest number, inf as 2^1024."""
        return log2_of(self.old) - log2_of(self.new)


class Sample(NamedTuple):
    """The unscaled gradients of one step, by parameter."""

    step: int
    counts: Mapping[str, npt.NDArray[np.int64]]
    """Parameter -> elements per binade, shape (280,): zeros; 2^-149 to 2^127; inf; NaN."""


@dataclass(frozen=True, eq=False)
class History:
    """A run in order of its steps. Arrays have one element per entry; NaN is what nobody wrote down."""

    source: str
    """The file, or whatever the reader was given."""
    program: str
    """Who wrote it: "ampsim", "HF Trainer", "DeepSpeed", ..."""
    step: npt.NDArray[np.int64]
    """Step of the optimizer, shape (n,), increasing."""
    scale: Floats
    """Loss scale in force at the step, shape (n,)."""
    skipped: Floats
    """Steps skipped since the entry before, this one included, shape (n,)."""
    norm: Floats
    """2-norm of the gradients as written down, shape (n,), inf for inf and NaN; the largest of merged entries."""
    loss: Floats
    """Shape (n,), inf for inf and NaN; the largest of merged entries."""
    changes: list[Change]
    """Every change of the scale, also those inside merged entries."""
    bad: dict[int, dict[str, str]]
    """Step -> parameter -> "has inf" or "has nan"."""
    samples: list[Sample]
    alarms: list[tuple[int, str]]
    settings: dict[str, object]
    """What is known of the scaler, such as "growth_interval": 2000, and of the run."""
    notes: list[str]
    """What the reader left out or took for granted, in sentences."""
    merged: int = 1
    """Entries of the run per entry here."""
    went_back: int = 0
    """Times that a step was followed by an earlier one."""
    furthest: int = 0
    """The largest step of all."""

    @property
    def out_of_order(self) -> bool:
        """Whether the steps go back so often, and end so early, that this is no run which was started again."""
        return self.went_back > 8 and self.went_back * 4 > len(self.step) and self.furthest > self.step[-1]

    @property
    def every_step(self) -> bool:
        """Whether each step has an entry that says if it was skipped, so that nothing is left to infer."""
        return bool(self.merged == 1 and np.all(np.diff(self.step) == 1) and not np.isnan(self.skipped).any())


@dataclass
class HistoryBuilder:
    """Collects entries in bounded memory; `finish` makes the history.

    An entry of the last one's step adds to it. An entry of an earlier step replaces what came from that step on: a run
    that went on from a checkpoint has its steps once.
    """

    source: str
    program: str
    settings: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bad: dict[int, dict[str, str]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    alarms: list[tuple[int, str]] = field(default_factory=list)
    _steps: "array[int]" = field(default_factory=lambda: array("q"))
    _values: "array[float]" = field(default_factory=lambda: array("d"))  # four per step
    _changes: list[Change] = field(default_factory=list)
    _known: tuple[int, float] | None = None  # the last step that had a scale, and it
    _merged: int = 1
    _waiting: tuple[int, list[float]] | None = None  # entries merged so far into one that is not kept yet
    _in_waiting: int = 0
    _back: int = 0
    _furthest: int = 0
    _forgotten: bool = False

    def add(
        self,
        step: int,
        *,
        scale: float = math.nan,
        skipped: float = math.nan,
        norm: float | None = None,
        loss: float | None = None,
    ) -> None:
        """Add an entry: see `History` for what each is; a norm or a loss that was written down as NaN counts as inf."""
        scale = math.nan if scale < 0 else scale  # nobody's loss scale
        skipped = skipped if 0 <= skipped < 2**53 else math.nan
        last = self._last_step()
        clash = self._known is not None and self._known[0] == step and not math.isnan(scale) and self._known[1] != scale
        again = step == last and not clash
        if step <= last and not again:
            self._go_back(step)
        self._furthest = max(self._furthest, step)
        if not math.isnan(scale):
            self._follow(step, scale)
        values = [scale, skipped, _written(norm), _written(loss)]
        if again and self._waiting is None:
            self._reopen()
        self._waiting = (step, values if self._waiting is None else _merge(self._waiting[1], values))
        self._in_waiting += not again
        if self._in_waiting == self._merged:
            self._keep()

    def finish(self) -> History:
        """Return the history of what was added."""
        self._keep()
        scale, skipped, norm, loss = np.array(self._values, np.float64).reshape(-1, 4).T.copy()
        notes = list(self.notes)
        if self._back:
            notes.append(f"The run went back to an earlier step ({self._back}×); what came later counts.")
        if self._merged > 1:
            notes.append(f"The run has more than {ENTRIES} entries; {self._merged} neighbours each are shown as one.")
        if self._forgotten:
            notes.append("The scale changed very often; only its later changes were looked at.")
        return History(
            self.source, self.program, np.array(self._steps, np.int64), scale, skipped, norm, loss,
            self._changes, self.bad, self.samples, self.alarms, self.settings, notes, self._merged,
            self._back, self._furthest,
        )  # fmt: skip

    def _follow(self, step: int, scale: float) -> None:
        if self._known is not None and scale != self._known[1]:
            self._changes.append(Change(self._known[0], step, self._known[1], scale))
            if len(self._changes) == CHANGES:
                del self._changes[: CHANGES // 2]
                self._forgotten = True
        self._known = step, scale

    def _last_step(self) -> int:
        if self._waiting is not None:
            return self._waiting[0]
        return self._steps[-1] if self._steps else -1

    def _keep(self) -> None:
        if self._waiting is None:
            return
        step, values = self._waiting
        self._waiting, self._in_waiting = None, 0
        self._steps.append(step)
        self._values.extend(values)
        if len(self._steps) == ENTRIES:
            self._halve()

    def _reopen(self) -> None:
        """Take back the entry that was kept last, to add to it."""
        self._waiting = self._steps.pop(), list(self._values[-4:])
        del self._values[-4:]
        self._in_waiting = self._merged

    def _halve(self) -> None:
        scale, skipped, norm, loss = np.array(self._values).reshape(-1, 2, 4).T
        skips = np.where(np.isnan(skipped).all(axis=0), np.nan, np.nansum(skipped, axis=0))
        scale = np.where(np.isnan(scale[1]), scale[0], scale[1])
        merged = np.stack([scale, skips, np.fmax(*norm), np.fmax(*loss)], axis=1)
        self._steps, self._values = self._steps[1::2], array("d", merged.tobytes())
        self._merged *= 2

    def _go_back(self, step: int) -> None:
        """Forget what came from `step` on; what was merged with earlier entries stays."""
        self._back += 1
        self._keep()
        while self._steps and self._steps[-1] >= step:
            self._steps.pop()
            del self._values[-4:]
        while self._changes and self._changes[-1].step >= step:
            self._known = self._changes[-1].after, self._changes[-1].old
            self._changes.pop()
        if self._known is not None and self._known[0] >= step:
            self._known = (step - 1, self._known[1]) if self._steps else None
        self.bad = {at: names for at, names in self.bad.items() if at < step}
        self.samples = [sample for sample in self.samples if sample.step < step]
        self.alarms = [alarm for alarm in self.alarms if alarm[0] < step]


def log2_of(scale: float) -> float:
    """Return the logarithm of a scale; that of 0 is -150, of inf 1024."""
    return -150.0 if scale == 0 else 1024.0 if math.isinf(scale) else math.log2(scale)


def _written(value: float | None) -> float:
    return math.nan if value is None else math.inf if math.isnan(value) else value


def _merge(first: list[float], second: list[float]) -> list[float]:
    """Merge two neighbours: the later scale, the sum of the skips, the largest norm and loss; NaN is not known."""
    scale = first[0] if math.isnan(second[0]) else second[0]
    skipped = second[1] if math.isnan(first[1]) else first[1] if math.isnan(second[1]) else first[1] + second[1]
    return [scale, skipped, _largest(first[2], second[2]), _largest(first[3], second[3])]


def _largest(*values: float) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
