"""What a log says of a run, whoever wrote it down: the one form that readers make and statements are made of.

Theory of operation
-------------------
A row is what one line says, or several lines of one step. Nothing is filled in: what was not printed is NaN. A row
without a number of its own (a sentence such as ``OVERFLOW!``) lies between its neighbours, and `History.numbered` says
that its step is only drawn there. A run that was started again has its earlier rows too, in an earlier segment: they
were printed, and stay true.
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ENTRIES = (
    2**18
)  # rows that are kept one by one; of a longer run, neighbours are merged, so that memory has a bound
MAYBE = (
    2.0**-20
)  # a skip that a sentence tells of which repeats the one before, as a second handler does
SMALL = 1024.0  # a scale that is called nothing else, and never moves, is no loss scale below it
EVENTS = 1_000  # skipped steps whose parameters are kept, alarms, and lines of a kind of sentence

Floats = npt.NDArray[np.float64]
COLUMNS = (
    "line",
    "step",
    "scale",
    "left",
    "told",
    "skipped",
    "total",
    "norm",
    "loss",
    "rate",
    "segment",
)
LINE, STEP, SCALE, LEFT, TOLD, SKIPPED, TOTAL, NORM, LOSS, RATE, SEGMENT = range(len(COLUMNS))
WIDTH = len(COLUMNS)
AT = {name: at for at, name in enumerate(COLUMNS)}
NONE: Mapping[str, float | None] = {}
BLANK = [math.nan] * WIDTH
PLACE = LINE, STEP, SEGMENT


class Sample(NamedTuple):
    """The unscaled gradients of one step, by parameter."""

    step: int
    counts: Mapping[str, npt.NDArray[np.int64]]
    """Parameter -> elements per binade, shape (280,): zeros; 2^-149 to 2^127; inf; NaN."""


@dataclass(eq=False)
class Told:
    """The words of a log, beside its rows."""

    source: str  # the file, or whatever the reader was given
    program: str  # who wrote it: "ampsim.runs.watch", "HF Trainer", "DeepSpeed", ...
    settings: dict[str, object] = field(default_factory=dict)
    """What is known of the scaler, such as "growth_interval": 2000, and of the run."""
    notes: list[str] = field(
        default_factory=list
    )  # what the reader left out or took for granted, in sentences
    bad: dict[int, dict[str, str]] = field(
        default_factory=dict
    )  # step -> parameter -> "has inf" or "has nan"
    samples: list[Sample] = field(default_factory=list)
    alarms: list[tuple[int, str]] = field(default_factory=list)
    says: dict[str, list[int]] = field(default_factory=dict)
    """What sentences say, such as "guard-off" -> the lines that say it."""
    unit: str = (
        "step"  # what steps number: "step", "epoch", or "line" where nothing in the log does
    )


@dataclass(eq=False, kw_only=True)
class History(Told):
    """A run in the order of its log. Arrays have one element per row; NaN is what nobody wrote down."""

    line: Floats  # number of the line in its file, from 1; of merged rows the last
    step: Floats  # step as the log numbers it; drawn between its neighbours' where it has no number
    bounds: Floats  # least and greatest step that each row can be of, shape (2, rows); -inf and inf where nothing tells
    numbered: npt.NDArray[np.bool_]  # whether the line had a number
    scale: Floats  # loss scale as printed, or the one that a sentence says the step had
    left: Floats  # loss scale that a sentence says the step left
    told: Floats  # skips that a sentence tells of, 0 or 1; NaN where the row is no sentence of a scale or a skip
    skipped: Floats  # skips that the program counts since the row before
    total: Floats  # skips that the program counts since its start
    norm: Floats  # 2-norm of the gradients as printed, inf for inf and NaN; the largest of merged rows
    loss: Floats  # loss as printed, inf for inf and NaN; the largest of merged rows
    rate: Floats  # learning rate as printed
    segment: Floats  # 0, and one more each time that the step did not go on
    rows: int  # of the log: more than there are here where neighbours were merged
    others: "tuple[History, ...]" = ()  # the other ranks and engines of the log

    @property
    def sentence(self) -> npt.NDArray[np.bool_]:
        """Rows that a sentence made."""
        return ~np.isnan(self.told)

    @property
    def last(self) -> npt.NDArray[np.bool_]:
        """Rows that no later one of the same or an earlier step replaces: the run as it went on."""
        later = np.minimum.accumulate(np.append(self.step, np.inf)[::-1])[::-1][1:]
        return np.asarray(self.step < later)

    @property
    def every_step(self) -> bool:
        """Whether each step has a row that says if it was skipped."""
        one = (
            self.rows == len(self.step) and self.numbered.all() and (np.diff(self.step) == 1).all()
        )
        return bool(one and not np.isnan(self.skipped).any())


@dataclass(eq=False)
class HistoryBuilder(Told):
    """Collects rows in bounded memory; `finish` makes the history. A row of the last one's step adds to it."""

    rows: int = 0
    twice: bool = False  # whether a line of it was printed twice
    loss: str = ""  # the field that losses are read from
    _values: "array[float]" = field(default_factory=lambda: array("d"))
    _row: list[float] = field(default_factory=list)  # the last one, which is not in the values yet
    _known: list[float] = field(default_factory=list)  # the last one with a number
    _last: float = -math.inf  # its number
    _segment: int = 0
    _halvings: int = 0  # how often neighbours were merged
    _merged: int = 0  # rows of the values that are merged; those behind them are not yet

    def add(
        self,
        step: float = math.nan,
        entry: Mapping[str, float | None] = NONE,
        **given: float | None,
    ) -> None:
        """Add a row: see `History` for the columns; a norm or a loss that was written down as NaN counts as inf."""
        row = [*BLANK, math.nan]  # the last is for what is no column
        for name, value in (given or entry).items():
            if value is not None:
                row[AT.get(name, WIDTH)] = (
                    math.inf if value != value and name in ("norm", "loss") else value
                )
        row.pop()
        row[STEP] = step
        if row[SCALE] < 0:
            row[SCALE] = math.nan  # nobody's loss scale
        if not (0 <= row[SKIPPED] < 2**53 and row[SKIPPED] % 1 == 0):
            row[SKIPPED] = math.nan
        if self._row and step == self._row[STEP] and self._joins(row, self._row):
            _join(self._row, row)
            return
        if step < self._last or (step == self._last and not self._joins(row, self._known)):
            self._segment += 1
        if step < self._last:
            self._forget(step)
        if step == step:
            self._last, self._known = step, row
        row[SEGMENT] = self._segment
        self.rows += 1
        self._values.fromlist(self._row)
        self._row = row
        if len(self._values) > max(ENTRIES, self._merged + ENTRIES // 4) * WIDTH:
            self._condense()

    @property
    def line(self) -> float:
        """Number of the last row's line; 0 before the first."""
        return self._row[LINE] if self._row else 0.0

    def begin(self) -> None:
        """Begin another start, of which no number of a step tells."""
        self._segment += 1

    def say(self, what: str, line: int) -> None:
        """Keep that a line says something."""
        lines = self.says.setdefault(what, [])
        if len(lines) < EVENTS:
            lines.append(line)

    def finish(self, others: tuple[History, ...] = ()) -> History:
        """Return the history of what was added."""
        self._values.fromlist(self._row)
        self._row = []
        self._condense()
        columns = np.frombuffer(self._values).reshape(-1, WIDTH).T.copy()
        numbered = ~np.isnan(columns[STEP])
        if not numbered.any():
            columns[STEP] = (
                columns[LINE] if (columns[LINE] > 0).all() else np.arange(columns.shape[1])
            )
            self.unit = "line"
        bounds = _bounds(columns[STEP], columns[SEGMENT], merged=self._halvings > 0)
        columns[STEP] = _between(columns[STEP]) if len(numbered) else columns[STEP]
        if self._halvings:
            self.notes.append(
                f"The log has more than {ENTRIES} lines of a run, so each {2**self._halvings} neighboring "
                "lines were merged."
            )
        told = columns[TOLD]
        told[:] = told if self.twice else np.floor(told) + np.rint(told % 1 / MAYBE)
        scale = columns[SCALE]
        logs = np.log2(np.where((scale > 0) & (scale < np.inf), scale, 1.0))
        if " " in self.loss:
            self.settings["loss"] = self.loss.partition(" ")[2]  # the name that it goes by
        bare = self.settings.pop("bare", None) and "values" not in self.settings
        known = scale[~np.isnan(scale)]
        most = known.max(initial=0.0)
        small = most < 1 or (most < SMALL and (known == most).all())
        if bare and (small or (np.abs(logs - np.rint(logs)) > 0.01).any()):
            scale[:] = (
                np.nan
            )  # no powers of two, fractions, or one and a small one: whatever else is called a scale
        if self.settings.get("count") == "unsaid":
            _tell_totals(columns, numbered & ~np.isnan(columns[SKIPPED]))
        given: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(Told)}
        given |= zip(COLUMNS, columns, strict=True)
        return History(**given, bounds=bounds, numbered=numbered, rows=self.rows, others=others)

    def _forget(self, step: float) -> None:
        """Forget what is drawn of the steps that come again."""
        self.bad = {at: names for at, names in self.bad.items() if at < step}
        self.samples[:] = [sample for sample in self.samples if sample.step < step]
        self.alarms[:] = [alarm for alarm in self.alarms if alarm[0] < step]

    @staticmethod
    def _joins(row: list[float], known: list[float]) -> bool:
        """Return whether a row of another one's step says nothing else than that one."""
        return not any(
            known[at] != row[at] for at in (SCALE, TOTAL) if not math.isnan(known[at] + row[at])
        )

    def _condense(self) -> None:
        """Merge the rows that have come lately as the others are, and all of them once more if they are too many."""
        fresh = np.array(self._values[self._merged * WIDTH :]).reshape(-1, WIDTH)
        for _ in range(self._halvings):
            fresh = _halved(fresh)
        del self._values[self._merged * WIDTH :]
        self._values.frombytes(fresh.tobytes())
        if len(self._values) > ENTRIES * WIDTH:
            rows = _halved(np.frombuffer(self._values).reshape(-1, WIDTH))
            self._values = array("d", rows.tobytes())
            self._halvings += 1
        self._merged = len(self._values) // WIDTH


def _halved(rows: Floats) -> Floats:
    """Merge each two rows: the later's values, the sum of the skips, the largest norm and loss."""
    if len(rows) % 2:
        rows = np.append(rows, [BLANK], axis=0)
    first, second = rows[::2], rows[1::2]
    merged = np.where(np.isnan(second), first, second)
    for at in (TOLD, SKIPPED):
        both = first[:, at] + second[:, at]
        merged[:, at] = np.where(np.isnan(both), merged[:, at], both)
    for at in (NORM, LOSS):
        merged[:, at] = np.fmax(first[:, at], second[:, at])
    return merged


def _join(first: list[float], second: list[float]) -> None:
    """Add what is said again of a row's step, as by another rank: its skips count once, of two norms the largest."""
    if all(math.isnan(first[at]) for at in (SCALE, NORM, LOSS)):
        first[LINE] = second[LINE]  # a count of skips alone may come long before
    for at, (old, new) in enumerate(zip(first, second, strict=True)):
        larger = at not in (SKIPPED, NORM, LOSS) or new > old
        if old != old or (new == new and at not in PLACE and larger):
            first[at] = new


def _tell_totals(columns: Floats, rows: npt.NDArray[np.bool_]) -> None:
    """Take counts for totals where they cannot be of the steps since the row before, as they are more than these.

    They are of something else where they cannot be totals either, or never change.
    """
    counts, steps = columns[SKIPPED, rows], np.diff(columns[STEP, rows])
    if counts.any() and len(counts) > 1 and (counts == counts[0]).all() and counts[0] > 1:
        columns[SKIPPED, rows] = np.nan
    elif (counts[1:] > steps)[steps > 0].any():
        columns[TOTAL, rows] = counts if (np.diff(counts) >= 0).all() else np.nan
        columns[SKIPPED, rows] = np.nan


def _bounds(steps: Floats, segments: Floats, *, merged: bool) -> Floats:
    """Return between which steps each row lies: at its own, or between its neighbours', unless the step went back."""
    known, at = np.flatnonzero(~np.isnan(steps)), np.arange(len(steps))
    before = np.searchsorted(known, at, "left" if merged else "right") - 1
    after = np.searchsorted(known, at, "left")
    low = (
        np.where(before >= 0, steps[known[before]], -np.inf)
        if len(known)
        else np.full(len(at), -np.inf)
    )
    high = np.append(steps[known], np.inf)[after]
    same = np.append(segments[known], np.nan)[after] == np.append(segments[known], np.nan)[before]
    torn = (before >= 0) & (after < len(known)) & ~same
    return np.where(torn, [[-np.inf], [np.inf]], np.stack([low, high]))


def _between(steps: Floats) -> Floats:
    """Return steps with what has no number spread between its neighbours."""
    known = np.flatnonzero(~np.isnan(steps))
    at = np.arange(len(steps))
    filled = np.interp(at, known, steps[known])
    before, after = at < known[0], at > known[-1]
    filled[before] = steps[known[0]] - (known[0] - at[before]) / (known[0] + 1) * min(
        1.0, max(steps[known[0]], 0.5)
    )
    filled[after] = steps[known[-1]] + at[after] - known[-1]
    return np.asarray(filled)
