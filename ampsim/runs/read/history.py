"""What a log shows of a run: series of numbers, and events.

A reader adds each number to the series of its name. No reader decides what a number proves; the
findings do. Memory is bounded: a series that reaches `LONGEST` numbers is thinned to half of them.
"""

import math
from array import array
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ampsim.core.formats import FP16
from ampsim.runs.record.run_file import LOWEST

WIDTH = 4
"""Columns of a series: line, step, value, and epoch."""
LONGEST = 1 << 18
"""Numbers that a series keeps."""
MOST_EVENTS = 1 << 16
"""Events that a history keeps."""
MOST_SAMPLES = 512
"""Samples of exponents that a history keeps."""

_FLUSHED = math.log2(FP16.smallest_subnormal) - 1

NAMELESS = "value"
"""Name of a number that stands alone on its line."""

Floats = npt.NDArray[np.float64]


class NothingReadError(ValueError):
    """Raised for a file in which no loss, loss scale, or gradient norm was found."""


@dataclass(eq=False)
class Series:
    """The numbers of one name, in the order of the log.

    Attributes:
        name: Name in the log, in lower case.
        role: "scale", "loss", "norm", "skips" (counts), "flag" (1 for a skipped step), "rate",
            "evaluation", "trouble" (counts of what is not finite), or "other" (what has another
            name, where it is not finite).
        rank: Rank that printed the numbers; 0 if the log does not show it.
    """

    name: str
    role: str
    rank: int = 0
    _rows: "array[float]" = field(default_factory=lambda: array("d"), repr=False)

    def __len__(self) -> int:
        return len(self._rows) // WIDTH

    def add(
        self, line: int, step: float, value: float, epoch: float = math.nan
    ) -> None:
        """Append a number; `step` and `epoch` are what `StepCounter.count` returns."""
        self._rows.extend((line, step, value, epoch))
        if len(self._rows) >= WIDTH * LONGEST:
            self._thin()

    def _thin(self) -> None:
        """Keep one of each two neighbors: the second one, or the first one if only it is not
        finite.
        """
        table = np.array(self._rows).reshape(-1, 2, WIDTH)
        is_finite = np.isfinite(table[:, :, 2])
        kept = np.where(is_finite[:, 1] & ~is_finite[:, 0], 0, 1)
        self._rows = array("d", table[np.arange(len(table)), kept].tobytes())

    # A reader calls these after the last number.
    @cached_property
    def _table(self) -> Floats:
        return np.array(self._rows).reshape(-1, WIDTH)

    @cached_property
    def lines(self) -> npt.NDArray[np.int64]:
        """Line of each number, from 1."""
        return self._table[:, 0].astype(np.int64)

    @cached_property
    def steps(self) -> Floats:
        """Step of each number, counted from the first epoch shown; NaN if the line has no step."""
        return self._table[:, 1]

    @cached_property
    def known_steps(self) -> Floats:
        """Step of each number over all epochs; NaN if the log does not show it."""
        return np.where(np.isnan(self._table[:, 3]), self.steps, math.nan)

    @cached_property
    def values(self) -> Floats:
        """The numbers."""
        return self._table[:, 2]

    @property
    def label(self) -> str:
        """The name in a sentence: "loss", or "column 'l'" if its words do not say what it is."""
        is_plain = any(word in self.name for word in ("loss", "norm", "scale"))
        return self.name if is_plain else f"column '{self.name}'"

    @property
    def finite(self) -> Floats:
        """The finite numbers."""
        return self.values[np.isfinite(self.values)]

    @property
    def steps_increase(self) -> bool:
        """Whether each number has a step, and each step is larger than the one before."""
        return bool(np.isfinite(self.steps).all() and (np.diff(self.steps) > 0).all())

    def part(
        self, rows: slice | npt.NDArray[np.bool_] | npt.NDArray[np.int64]
    ) -> "Series":
        """Return some of the numbers as a series."""
        return replace(self, _rows=array("d", self._table[rows].tobytes()))

    def between(self, first: int, last: int) -> "Series":
        """Return the numbers from line `first` up to, and without, line `last`."""
        start, stop = np.searchsorted(self.lines, [first, last])
        return self.part(slice(int(start), int(stop)))

    def place(self, at: int) -> str:
        """Return where a number is, for example "step 90", "epoch 4", or "line 12"."""
        line, step, _, epoch = self._table[at]
        if math.isnan(epoch):
            return f"line {line:.0f}" if math.isnan(step) else f"step {step:.0f}"
        place = f"epoch {epoch:.6g}"
        return place if math.isnan(step) else f"{place} (line {line:.0f})"


class StepCounter:
    """Counts steps over all epochs, where each epoch may count its own."""

    def __init__(self) -> None:
        self._first = math.nan  # number of the first epoch of a run: 0 or 1
        self._epoch = math.nan  # the last one shown
        self._before = self._last = 0.0  # steps before this epoch; its last step
        self._is_known = True  # whether `_before` is all that came before

    def count(
        self,
        step: float,
        epoch: float = math.nan,
        total: float = math.nan,
        epochs: float = math.nan,
    ) -> tuple[float, float]:
        """Return the step of a line over all epochs, and what names its place if the step does not.

        Args:
            step: Step that the line shows; NaN for none, as below.
            epoch: Epoch that the line shows.
            total: Steps of an epoch, such as 100 in "58/100".
            epochs: Epochs of the run, such as 4 in "4/4".

        Returns:
            The step, and the epoch if the step is unknown or is counted from an unknown one.
        """
        if math.isnan(self._first) and (epoch in (0, 1) or epoch == epochs):
            self._first = min(epoch, 1.0)
        if math.isnan(step):
            return step, epoch
        if math.isfinite(epoch) and epoch == int(epoch) and epoch != self._epoch:
            self._begin(step, epoch, total)
        self._last = max(self._last, step)  # an evaluation may count, too
        return step + self._before, math.nan if self._is_known else self._epoch

    def _begin(self, step: float, epoch: float, total: float) -> None:
        """Find how many steps came before an epoch that differs from the one before."""
        if not epoch > self._epoch:  # the first epoch shown, or a restart
            before = (epoch - self._first) * total
            # Without a total, the log gives no reason to think that each epoch counts its own.
            self._is_known = math.isnan(total) or epoch == self._first or before > 0
            self._before = before if before > 0 else 0.0
        elif step <= self._last:
            self._is_known = self._is_known and math.isfinite(total)
            passed = (epoch - self._epoch) * total
            self._before += passed if math.isfinite(total) else self._last
        self._epoch, self._last = epoch, 0.0


@dataclass(frozen=True)
class Event:
    """A sentence of the log about the loss scale.

    Attributes:
        kind: "skip", "growth", "minimum", "stopped", "unguarded", "off", "bad-loss", "bad-norm",
            "bad-parameters", "all-invalid", or "alarm".
        line: Line of the log, from 1.
        step: Step, if the line has it; else NaN.
        text: The line.
        before: Scale of the step, if the line has it; else NaN.
        after: Scale after the step, if the line has it; else NaN.
        copies: Lines that report it: several ranks, handlers, or sentences may.
    """

    kind: str
    line: int
    step: float
    text: str
    before: float = math.nan
    after: float = math.nan
    copies: int = 1


@dataclass(frozen=True)
class Sample:
    """Exponent histograms of the gradients of one step, by parameter; see `pack_counts`."""

    step: int
    counts: dict[str, npt.NDArray[np.int64]]


def flushed(
    counts: npt.NDArray[np.int64], scale: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Return how many nonzero elements float16 makes zero at a scale, by histogram.

    Args:
        counts: Histograms, shape (..., BINS).
        scale: Scale of each histogram, a number or shape (...).
    """
    inner = counts[..., 1:-2]
    unscaled = np.arange(LOWEST, LOWEST + inner.shape[-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        binades = unscaled + np.log2(scale)[..., None]
    return np.asarray((inner * (binades < _FLUSHED)).sum(-1))


@dataclass(eq=False)
class History:
    """What was read from one log.

    Attributes:
        source: Path of the log.
        line_count: Lines of the log.
        starts: Lines at which the epochs, or what is printed first, start again.
        series: All series, in the order of the log.
        events: All events, in the order of the log.
        texts: Distinct texts of lines without their numbers -> the first line that has it.
        errors: Known errors and warnings in the log: (line, id of the error text, line's text).
        settings: Settings of a recorded run.
        notes: What the reader skipped or assumed, in sentences.
        samples: Exponent histograms of a recorded run.
        nonfinite: Step -> parameter -> "has inf" or "has nan", of a recorded run.
        warnings: (step, text) of each warning of a recorded run.
        recorded: Whether `ampsim.runs.watch` recorded the run, with a record for each step.
    """

    source: str
    line_count: int = 0
    starts: list[int] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    texts: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    nonfinite: dict[int, dict[str, str]] = field(default_factory=dict)
    warnings: list[tuple[int, str]] = field(default_factory=list)
    recorded: bool = False

    def role(self, role: str) -> list[Series]:
        """Return the series of one role."""
        return [series for series in self.series if series.role == role]

    def between(self, first: int, last: int) -> "History":
        """Return what was read from line `first` up to, and without, line `last`."""
        parts = [series.between(first, last) for series in self.series]
        parts = [part for part in parts if len(part)]
        begin = min((part.steps[0] for part in parts), default=0)
        end = max((part.steps[-1] for part in parts), default=0)
        return replace(
            self,
            line_count=last - 1,
            series=parts,
            warnings=[each for each in self.warnings if begin <= each[0] <= end],
            events=[event for event in self.events if first <= event.line < last],
            errors=[error for error in self.errors if first <= error[0] < last],
        )
