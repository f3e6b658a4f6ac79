"""A history, arranged for the findings: which loss, which scale, and which steps were skipped."""

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ampsim.runs.read.history import Event, Floats, History, Series

MESSAGES = "loss scale in messages"
"""Name of the series of the scales that sentences name."""
_MAIN_LOSS = re.compile(
    r"^(?:train(?:ing)?[_/ ])?(?:lm |total[_ ]|reduced[_ ]train[_ ]|step[_ ]|train(?:ing)?[_ ]|mlm[_ ])?loss"
    r"(?:[_ ]total|[_ ]step|/train)?$|^train[_/ ]loss|^l$|^nll$"
)
_PRINTER = re.compile(r"^\W*(\d+):\s|\b[Rr]ank[ :=_]?(\d+)")
_NOT_SKIPS = re.compile(r"nan iteration")


@dataclass(frozen=True)
class Skip:
    """Skipped steps that the log places.

    Attributes:
        first: First step that they can be.
        last: Last step that they can be.
        count: How many steps were skipped between these.
        scale: Loss scale of the skipped step; NaN if the log does not give it.
        line: Line that shows them.
    """

    first: float
    last: float
    count: int
    scale: float
    line: int


@dataclass(frozen=True)
class SkipTail:
    """Skipped steps up to the end of the log, none of them taken.

    Attributes:
        series: Counter or flags that show them.
        row: Number of the series from which on each step was skipped.
        steps: How many steps these are, at least.
    """

    series: Series
    row: int
    steps: float


class Evidence:
    """What the findings look at.

    Args:
        history: One run of one log.
    """

    def __init__(self, history: History) -> None:
        self.history, self.events = history, history.events
        self.losses = _main_losses(history.role("loss"))
        self.loss = next(iter(self.losses), None)
        self.evaluations = history.role("evaluation")
        norms = history.role("norm")
        self.norm = max(norms, key=lambda each: ("grad" in each.name, len(each)), default=None)
        self.rates = history.role("rate")
        told = self._scales_in_events()
        scales = [
            series.part(~np.isnan(series.values)) for series in (*history.role("scale"), told)
        ]
        self.scales = [series for series in scales if len(series.finite)]
        counts = [part for each in history.role("skips") if len(part := _counts(each))]
        counters = [each for each in counts if not _NOT_SKIPS.search(each.name)]
        self.nan_counters = [each for each in counts if _NOT_SKIPS.search(each.name)]
        self.flags = [each for each in counters if _is_flag(each, history)]
        self.counters = [each for each in counters if each not in self.flags]
        self.records = [
            each
            for each in (*self.losses, self.norm, *self.counters, *self.flags)
            if each is not None
        ]
        ends = [int(series.lines[-1]) for series in [*self.records, *self.scales]]
        self.end = max(ends, default=0)
        # Of the scales that reach the end of the log the one with the most numbers.
        self.scale = max(
            self.scales,
            key=lambda each: (each.lines[-1] >= 0.7 * self.end, len(each)),
            default=None,
        )

    def kind(self, *kinds: str) -> list[Event]:
        """Return the events of some kinds."""
        return [event for event in self.events if event.kind in kinds]

    def _scales_in_events(self) -> Series:
        told = Series(MESSAGES, "scale")
        for event in self.events:
            for value in (event.before, event.after):
                if math.isfinite(value):
                    told.add(event.line, event.step, value)
        return told

    def finite_losses_after(self, line: int) -> int:
        """Return how many finite losses follow a line."""
        return max(
            (int(np.isfinite(each.values[each.lines > line]).sum()) for each in self.losses),
            default=0,
        )

    @property
    def has_static_scale(self) -> bool:
        """Whether a scale has the same value on all of at least 3 records."""
        return any(
            len(scale) >= 3 and bool((scale.values == scale.values[0]).all())
            for scale in self.scales
        )

    # ---- skipped steps

    @cached_property
    def skips(self) -> list[Skip]:
        """The skipped steps that the log shows, from the source that shows the most."""
        told, flagged, tallied = self._told_skips(), self._flagged_skips(), self._counted_skips()
        return max((tallied, flagged, told), key=_total) or self._skips_at_falls()

    @cached_property
    def skips_at_least(self) -> int:
        """How many steps were skipped at least."""
        totals = [int(each.values.max()) for each in self.counters if is_total(each)]
        shown = max(map(_total, (self._counted_skips(), self._flagged_skips())))
        least = max([shown, *totals])
        if any(totals) and all(each.steps_increase for each in self.counters):
            return least  # a counter of one scaler knows better than sentences, which ranks repeat
        return max(least, self._told_at_least()) or _total(self.skips)

    def _told_at_least(self) -> int:
        """Return how many skips the sentences prove: each rank may print them, and two sentences may tell of one."""
        scaled, bare = list[Event](), list[Event]()
        for event in self.kind("skip"):
            has_scale = math.isfinite(event.before) or math.isfinite(event.after)
            (scaled if has_scale else bare).append(event)
        of_scaled = min(len(scaled), _reported(scaled))
        steps = {event.step for event in bare}
        if any(map(math.isnan, steps)):
            return len(bare) + of_scaled
        return max(len(steps), of_scaled)

    def _told_skips(self) -> list[Skip]:
        """Return one skip for each sentence, between the steps of the records around it."""
        records = max([*self.losses, *self.scales, *self.counters], key=len, default=Series("", ""))
        steps = np.append(records.steps, math.nan)
        skips = []
        for event in self.kind("skip"):
            row = int(np.searchsorted(records.lines, event.line))
            around = (
                (event.step, event.step)
                if math.isfinite(event.step)
                else (steps[row - 1], steps[row])
            )
            skips.append(Skip(float(around[0]), float(around[1]), 1, event.before, event.line))
        return skips

    def _flagged_skips(self) -> list[Skip]:
        flags = max(self.flags, key=lambda each: int((each.values > 0).sum()), default=None)
        if flags is None:
            return []
        scales = dict(zip(self.scale.lines, self.scale.values, strict=True)) if self.scale else {}
        rows = np.flatnonzero(flags.values > 0)
        steps, lines = flags.steps[rows].tolist(), flags.lines[rows].tolist()
        return [
            Skip(step, step, 1, float(scales.get(line, math.nan)), line)
            for step, line in zip(steps, lines, strict=True)
        ]

    def _counted_skips(self) -> list[Skip]:
        """Return the skips of a counter between each two of its numbers."""
        counter = max(self.counters, key=lambda each: np.nansum(each.values), default=None)
        if counter is None:
            return []
        counts = _new_skips(counter)
        before = np.append(-1.0, counter.steps[:-1])
        rows = np.flatnonzero(counts >= 1)
        columns = before[rows] + 1, counter.steps[rows], counts[rows], counter.lines[rows]
        return [
            Skip(float(low), float(high), int(count), math.nan, int(line))
            for low, high, count, line in zip(*columns, strict=True)
        ]

    def _skips_at_falls(self) -> list[Skip]:
        """Return the skips that the falls of a scale show: each halving is one, if an overflow halves the scale."""
        scale = self.scale
        if scale is None or not is_halved(scale.values):
            return []
        rows = np.flatnonzero(scale.values[1:] < scale.values[:-1])
        return [
            Skip(
                float(scale.steps[row]), float(scale.steps[row + 1]),
                max(1, round(halvings(scale.values[row], scale.values[row + 1]))),
                float(scale.values[row]), int(scale.lines[row + 1]),
            )
            for row in rows
        ]  # fmt: skip

    @cached_property
    def counts_exactly(self) -> bool:
        """Whether the log counts each skipped step: a counter that stays 0 beside reported skips does not."""
        if not self.counters:
            return bool(self.flags) and self.history.recorded
        return _total(self._counted_skips()) > 0 or not self.kind("skip")

    @cached_property
    def skip_share(self) -> tuple[float, float] | None:
        """Skipped steps and steps of the second half of the log; None if the log does not show them."""
        for counter in self.counters:
            if len(counter) == 1 and is_total(counter) and counter.steps[0] >= 200:
                return float(counter.values[0]), float(counter.steps[0])
        others = (
            self.losses if self.kind("skip") else [each for each in self.scales if _is_dense(each)]
        )
        # Counters that are not in order are of several scalers, and so are the sentences beside them.
        for series in [*self.counters, *self.flags, *([] if self.counters else others)]:
            half = len(series) // 2
            half = 0 if series.steps[-1] - series.steps[half] < 20 else half
            steps, values = series.steps[half:], series.values[half:]
            counts = series in self.counters
            ordered = bool(
                (np.diff(steps) > 0).all()
                if counts or series in self.scales
                else (np.diff(steps) >= 0).all()
            )
            if len(series) < (2 if counts else 4) or not ordered or steps[-1] == steps[0]:
                continue
            if series in self.flags:
                return float((values > 0).sum()), float(len(values))
            late = sum(skip.count for skip in self.skips if skip.line > series.lines[half])
            if counts:  # other skips may be of another scaler
                late = values[-1] - values[0] if is_total(series) else values[1:].sum()
            return float(late), float(steps[-1] - steps[0])
        return None

    @cached_property
    def skip_tail(self) -> SkipTail | None:
        """The skipped steps up to the end of the log; None if the last record has a step that was taken."""
        for series in [*self.flags, *self.counters]:
            full = series.values > 0
            if series in self.counters:
                skipped = np.diff(series.values) if is_total(series) else series.values[1:]
                full = np.append(True, skipped >= np.diff(series.steps)) & series.steps_increase
            row = len(full) - equal_at_end(full.astype(float), 1.0)
            if row < len(series) - 1:
                steps = (
                    len(series) - row
                    if series in self.flags
                    else series.steps[-1] - series.steps[max(row - 1, 0)]
                )
                return SkipTail(series, row, float(steps))
        return None


def _reported(events: list[Event]) -> int:
    """Return how many skips there are at least if each printer reports each of them.

    Printers that give no rank are at most as many as the reports of the first scale.
    """
    marks = [match[0] for event in events if (match := _PRINTER.search(event.text))]
    printers = len(set(marks)) if 2 * len(set(marks)) <= len(marks) else 1
    if not marks and any(event.copies > 1 for event in events):
        printers = sum(event.copies for event in events if event.after == events[0].after)
    reported = math.ceil(sum(event.copies for event in events) / max(printers, 1))
    return max(reported, len({event.after for event in events}))


def _counts(series: Series) -> Series:
    """Return the numbers of a series that can be counts."""
    values = series.values
    return series.part((values >= 0) & (values < 2.0**53) & (values % 1 == 0))


def is_total(counter: Series) -> bool:
    """Return whether a counter counts from the start of the run, and not since the line before."""
    return bool((np.diff(counter.values) >= 0).all()) and "number of" not in counter.name


def _new_skips(counter: Series) -> Floats:
    """Return how many steps were skipped between each two numbers of a counter.

    A counter that falls, and that is more than the steps between its lines, is of several scalers or runs: then only
    its largest number is certain.
    """
    if is_total(counter):
        return np.diff(counter.values, prepend=0.0)
    steps = np.diff(counter.steps)
    if (counter.values[1:] <= steps).all():
        return counter.values
    return np.where(np.arange(len(counter)) == np.argmax(counter.values), counter.values, 0.0)


def _main_losses(losses: list[Series]) -> list[Series]:
    """Return the training losses: of several names the usual ones, of the parts of a sum the first."""
    longest = max(map(len, losses), default=0)
    long = [series for series in losses if len(series) >= 0.3 * longest]
    main = [series for series in long if _MAIN_LOSS.search(series.name)]
    if main or len(long) <= 3 or not any(math.isfinite(series.values[-1]) for series in long):
        return main or long
    return long[:1]


def _is_flag(series: Series, history: History) -> bool:
    """Return whether numbers say of each record whether its step was skipped."""
    # A total that ends at 1 and a flag look alike; a flag falls back to 0.
    falls = bool(np.isin(series.values, (0.0, 1.0)).all() and (np.diff(series.values) < 0).any())
    return history.recorded or "overflow" in series.name or (series.name == "skipped" and falls)


def _is_dense(scale: Series) -> bool:
    """Return whether the records of a scale are at most 10 steps apart."""
    span = scale.steps[-1] - scale.steps[len(scale) // 2]
    return len(scale) > 20 and is_halved(scale.values) and 0 < span <= 5 * len(scale)


def is_halved(values: Floats) -> bool:
    """Return whether most of the numbers are powers of two: means of scales, and other numbers, are not."""
    positive = values[(values > 0) & np.isfinite(values)]
    return len(positive) > 0 and float(np.mean(np.log2(positive) % 1 == 0)) >= 0.8


def _total(skips: list[Skip]) -> int:
    return sum(skip.count for skip in skips)


def halvings(before: float, after: float) -> float:
    """Return by how many halvings one scale is lower than another; 0 if one of them is not positive and finite."""
    usable = 0 < before < math.inf and 0 < after < math.inf
    return math.log2(before) - math.log2(after) if usable else 0.0


def lost(values: Floats) -> npt.NDArray[np.bool_]:
    """Return which numbers are NaN or infinite."""
    return ~np.isfinite(values)


def lost_at_end(series: Series | None) -> int:
    """Return how many numbers at the end of a series are not finite."""
    return 0 if series is None else equal_at_end(lost(series.values).astype(float), 1.0)


def equal_at_end(values: Floats, value: float) -> int:
    """Return how many numbers at the end are equal to a value."""
    others = np.flatnonzero(values != value)
    return len(values) - (int(others[-1]) + 1 if len(others) else 0)


def falls(values: Floats) -> float:
    """Return by what share of its first level a loss fell; 0 if it did not fall by more than its noise.

    The levels are the medians of the first and the last quarter.
    """
    if len(values) < 3:
        return 0.0
    part = max(1, len(values) // 4)
    level = float(np.median(values[:part]))
    fall = level - float(np.median(values[-part:]))
    noise = float(np.median(np.abs(values[:part] - level)))
    # The quarters of a short log have too few numbers to show their noise.
    least = 0.02 * abs(level) if len(values) < 12 else max(0.002 * abs(level), 0.5 * noise)
    return fall / max(abs(level), 1e-300) if fall > least else 0.0


def last_descent(scale: Series) -> int:
    """Return the row at which the last fall of a scale without a rise begins; the last row if there is none."""
    values, last = scale.values, len(scale) - 1
    rises = np.flatnonzero(values[1:] > values[:-1])
    start = int(rises[-1]) + 1 if len(rises) else 0
    while start < last and values[start + 1] == values[start]:
        start += 1
    return start
