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

LONGEST = 1 << 18
"""Numbers that a series keeps."""
MOST_EVENTS = 1 << 16
"""Events that a history keeps."""
MOST_SAMPLES = 512
"""Samples of exponents that a history keeps."""

LOWEST = -149
"""Binade of the second bin of a histogram."""
_FLUSHED = math.log2(FP16.smallest_subnormal) - 1

Floats = npt.NDArray[np.float64]


class NothingReadError(ValueError):
    """Raised for a file in which no loss, loss scale, or gradient norm was found."""


@dataclass(eq=False)
class Series:
    """The numbers of one name, in the order of the log.

    Attributes:
        name: Name in the log, in lower case.
        role: "scale", "loss", "norm", "skips", "rate", or "evaluation".
        rank: Rank that printed the numbers; 0 if the log does not show it.
    """

    name: str
    role: str
    rank: int = 0
    _rows: "array[float]" = field(default_factory=lambda: array("d"), repr=False)

    def __len__(self) -> int:
        return len(self._rows) // 3

    def add(self, line: int, step: float, value: float) -> None:
        """Append a number."""
        self._rows.extend((line, step, value))
        if len(self._rows) >= 3 * LONGEST:
            self._thin()

    def _thin(self) -> None:
        """Keep one of each two neighbors: the second one, or the first one if only it is not
        finite.
        """
        table = np.array(self._rows).reshape(-1, 2, 3)
        is_finite = np.isfinite(table[:, :, 2])
        kept = np.where(is_finite[:, 1] & ~is_finite[:, 0], 0, 1)
        self._rows = array("d", table[np.arange(len(table)), kept].tobytes())

    # A reader calls these after the last number.
    @cached_property
    def _table(self) -> Floats:
        return np.array(self._rows).reshape(-1, 3)

    @cached_property
    def lines(self) -> npt.NDArray[np.int64]:
        """Line of each number, from 1."""
        return self._table[:, 0].astype(np.int64)

    @cached_property
    def steps(self) -> Floats:
        """Step of each number as the log gives it; NaN if the line has no step."""
        return self._table[:, 1]

    @cached_property
    def values(self) -> Floats:
        """The numbers."""
        return self._table[:, 2]

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
        """Return where a number is, for example "step 90" or "line 12"."""
        step = self.steps[at]
        return f"step {step:.0f}" if math.isfinite(step) else f"line {self.lines[at]}"


@dataclass(frozen=True)
class Event:
    """A sentence of the log about the loss scale.

    Attributes:
        kind: "skip", "growth", "minimum", "stopped", "unguarded", "off", "bad-loss", "bad-norm",
            "bad-parameters", or "all-invalid".
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
        counts: Histograms, shape (..., 280).
        scale: Scale of each histogram, a number or shape (...).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        binades = np.arange(LOWEST, LOWEST + 277) + np.log2(scale)[..., None]
    return np.asarray((counts[..., 1:-2] * (binades < _FLUSHED)).sum(-1))


@dataclass(eq=False)
class History:
    """What was read from one log.

    Attributes:
        source: Path of the log.
        line_count: Lines of the log.
        starts: Lines at which the epochs start again.
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
        return replace(
            self,
            line_count=last - 1,
            series=[part for part in parts if len(part)],
            events=[event for event in self.events if first <= event.line < last],
            errors=[error for error in self.errors if first <= error[0] < last],
        )
