"""A history, arranged for the findings: its losses, its loss scale, and its skipped steps."""

import math
import re
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ampsim.runs.read.history import Event, Floats, History, Series
from ampsim.runs.read.names import role_of

MESSAGES = "loss scale in messages"
"""Name of the series of the scales that sentences name."""
ROUNDED = 0.02
"""By how much the logarithm of a scale is off that is printed with two digits or more."""
NOTHING = Series("", "")
"""What the log does not show."""
_MAIN_LOSS = re.compile(
    r"^(?:train(?:ing)?[_/ ])?(?:lm |total[_ ]|reduced[_ ]train[_ ]|step[_ ]|train(?:ing)?[_ ]|mlm[_ ])?loss"
    r"(?:[_ ]total|[_ ]step|/train)?$|^train[_/ ]loss|^l$|^nll$"
)


VAGUE = ("l", "cost")
"""Names of a loss, or of a length and of a time beside a loss of another name."""


class Skip(NamedTuple):
    """Skipped steps that the log places.

    Attributes:
        first: First step that they can be.
        last: Last step that they can be.
        count: How many steps were skipped between these.
        line: Line that shows them.
    """

    first: float
    last: float
    count: int  # type: ignore[assignment]  # hides tuple.count
    line: int


class SkipColumn(NamedTuple):
    """How many steps of each record were skipped.

    Attributes:
        records: Series with the lines and the steps of the records.
        counts: Skipped steps of each record.
        spans: Steps of each record; 1 for a flag, which is about the step of its record.
    """

    records: Series
    counts: Floats
    spans: Floats

    @property
    def total(self) -> int:
        """Skipped steps of all records."""
        return int(self.counts.sum())

    def skips(self) -> list[Skip]:
        """Return the skips of each record."""
        skips = []
        for row in np.flatnonzero(self.counts >= 1):
            last, count = self.records.known_steps[row], self.counts[row]
            first, line = last - self.spans[row] + 1, self.records.lines[row]
            skips.append(Skip(float(first), float(last), int(count), int(line)))
        return skips

    def share(self) -> tuple[float, float] | None:
        """Return the skipped steps and the steps of the second half; None in no order."""
        steps = self.records.steps
        half = len(steps) // 2
        if not steps[-1] - steps[half] >= 20:
            half = 0
        spans = self.spans[half + 1 :]
        if len(spans) < 1 or not (spans > 0).all():
            return None
        return float(self.counts[half + 1 :].sum()), float(spans.sum())


class Evidence:
    """What the findings look at.

    Args:
        history: One run of one log.

    Attributes:
        losses: Training losses; `loss` is the first of them.
        means: Means of losses that were NaN, beside losses.
        evaluations: Losses of evaluations.
        norm: Gradient norm. If the log shows none, it is empty, as `loss` and `scale` are.
        rates: Learning rates.
        others: Other numbers, where they are not finite.
        troubles: Counts of what was not finite.
        scales: Loss scales, also those in sentences; `scale` is the most telling of them.
        counters: Counters of skipped steps, since the start or since the line before.
        flags: Whether the step of each record was skipped.
        end: Last line with a number.
        record_count: Numbers of the longest series.
    """

    def __init__(self, history: History) -> None:
        self.history, self.events = history, history.events
        self.evaluations = history.role("evaluation")
        evaluated = max(map(len, self.evaluations), default=0)
        # A number that is printed once beside many evaluations is of something else.
        losses = [each for each in history.role("loss") if 50 * len(each) > evaluated]
        self.losses = _training_losses(losses)
        means = [each for each in losses if role_of(each.name) == "mean loss"]
        self.means = means if len(means) < len(losses) else []
        self.loss = next(iter(self.losses), NOTHING)
        self.norm = self._gradient_norm()
        self.rates = history.role("rate")
        self.others, self.troubles = history.role("other"), history.role("trouble")
        scales = [*history.role("scale"), self._scales_in_events()]
        known = [series.part(~np.isnan(series.values)) for series in scales]
        self.scales = [series for series in known if len(series.finite)]
        counts = [_counts(each) for each in history.role("skips")]
        flags = [*history.role("flag"), *filter(self._is_flag, counts)]
        self.flags = [_flag(each) for each in flags]
        counters = [each for each in counts if len(each) and not self._is_flag(each)]
        self.counters = [_counter(each) for each in counters]
        numbers = [*self.losses, *self.scales, *counts, *flags, self.norm]
        self.end = max(int(each.lines[-1]) if each else 0 for each in numbers)
        self.scale = max(self.scales, key=self._telling, default=NOTHING)
        main = [*self.losses, *self.scales, *self.evaluations, self.norm]
        self.record_count = max(map(len, main))

    def _gradient_norm(self) -> Series:
        longest = max(map(len, self.losses), default=0)
        # A norm that is printed beside overflows only says nothing of the other steps.
        often = [
            norm
            for norm in self.history.role("norm")
            if len(norm.finite) or 3 * len(norm) >= longest
        ]
        return max(
            often, key=lambda norm: ("grad" in norm.name, len(norm)), default=NOTHING
        )

    def _scales_in_events(self) -> Series:
        scales = Series(MESSAGES, "scale")
        for event in self.events:
            for value in (event.before, event.after):
                if math.isfinite(value):
                    scales.add(event.line, event.step, value)
        return scales

    def _telling(self, scale: Series) -> tuple[bool, int]:
        """Return what a scale is chosen by: it reaches the end, it is long."""
        return bool(scale.lines[-1] >= 0.7 * self.end), len(scale)

    def _is_flag(self, counts: Series) -> bool:
        """Return whether numbers say of each record whether its step was skipped."""
        if not counts:
            return False
        if self.history.recorded or re.search("overflow|found_inf", counts.name):
            return True
        # A total that ends at 1 and a flag look alike; a flag falls back to 0.
        falls_back = bool((np.diff(counts.values) < 0).any())
        return counts.name == "skipped" and falls_back and counts.values.max() <= 1

    def kind(self, *kinds: str) -> list[Event]:
        """Return the events of some kinds."""
        return [event for event in self.events if event.kind in kinds]

    def finite_losses_after(self, line: int) -> int:
        """Return how many finite losses follow a line."""
        later = [np.isfinite(loss.values[loss.lines > line]) for loss in self.losses]
        return max((int(finite.sum()) for finite in later), default=0)

    @property
    def has_static_scale(self) -> bool:
        """Whether a scale has the same value on all of at least 3 records."""
        return any(
            len(scale) >= 3 and not np.ptp(scale.values) for scale in self.scales
        )

    # ---- skipped steps

    @cached_property
    def skips(self) -> list[Skip]:
        """The skipped steps that the log shows, from the source that shows the most."""
        reported = self._reported_skips()
        most = max(self._columns, key=lambda column: column.total, default=None)
        if most is None or most.total < len(reported):
            return reported
        return most.skips()

    @cached_property
    def _columns(self) -> list[SkipColumn]:
        """What counts the skipped steps, also the scale if nothing else counts or reports each."""
        columns = [*self.counters, *self.flags]
        is_counted = self.counts_exactly and any(column.total for column in columns)
        if not is_counted and not self.kind("skip") and is_halved(self.scale.values):
            columns.append(_falls_of(self.scale))
        return columns

    @cached_property
    def skips_at_least(self) -> int:
        """How many steps were skipped at least."""
        least = max((column.total for column in self._columns), default=0)
        if least:
            return least  # a counter knows better than sentences, which ranks repeat
        reports = self.kind("skip")
        is_bare = all(
            math.isnan(event.after) and math.isfinite(event.step) for event in reports
        )
        if not (is_bare or any(event.copies > 1 for event in reports)):
            return len(reports)
        # Each rank reports each skip, and equal reports may be of one skip.
        keys = set()
        for event in reports:
            keys.add(str(event.step if math.isnan(event.after) else event.after))
        return len(keys)

    def _reported_skips(self) -> list[Skip]:
        """Return one skip for each sentence, between the steps of the records around it."""
        counters = [column.records for column in self.counters]
        records = max([*self.losses, *self.scales, *counters, NOTHING], key=len)
        steps = np.append(records.known_steps, math.nan)
        skips = []
        for event in self.kind("skip"):
            row = int(np.searchsorted(records.lines, event.line))
            first, last = float(steps[row - 1]), float(steps[row])
            if math.isfinite(event.step):
                first = last = event.step
            skips.append(Skip(first, last, 1, event.line))
        return skips

    @property
    def counts_exactly(self) -> bool:
        """Whether the log counts each skipped step; one of 0 beside reported skips does not."""
        if not self.counters:
            return bool(self.flags) and self.history.recorded
        return any(column.total for column in self.counters) or not self.kind("skip")

    @cached_property
    def skip_share(self) -> tuple[float, float]:
        """Skipped steps and steps of the second half; (0, 0) if the log does not show them."""
        shares = (column.share() for column in [*self.counters, *self.flags])
        return next(filter(None, shares), (0.0, 0.0))


def _training_losses(losses: list[Series]) -> list[Series]:
    """Return the training losses: those of usual names, or of the parts of a sum the first."""
    losses = [each for each in losses if each.name not in VAGUE] or losses
    longest = max(map(len, losses), default=0)
    long = [series for series in losses if len(series) >= 0.3 * longest]
    main = [series for series in long if _MAIN_LOSS.search(series.name)]
    if main or len(long) <= 3:
        return main or long
    return list(filter(lost_at_end, long)) or long[:1]


def _counts(series: Series) -> Series:
    """Return the numbers of a series that can be counts."""
    values = series.values
    return series.part((values >= 0) & (values < 2.0**53) & (values % 1 == 0))


def _flag(flag: Series) -> SkipColumn:
    return SkipColumn(flag, (flag.values > 0).astype(np.float64), np.ones(len(flag)))


def _counter(counter: Series) -> SkipColumn:
    """Return the skips between each two numbers of a counter.

    A counter that falls, and that is more than the steps between its lines, is of several scalers
    or runs: then only its largest number is certain.
    """
    counts, spans = counter.values, np.diff(counter.steps, prepend=0.0)
    # "number of" names a counter since the line before, even if the counter never falls.
    if (np.diff(counts) >= 0).all() and "number of" not in counter.name:
        return SkipColumn(counter, np.diff(counts, prepend=0.0), spans)
    spans[0] = counts[0] or 1.0  # the steps before the first line are not known
    if not (counts[1:] <= spans[1:]).all():
        counts = np.where(np.arange(len(counts)) == np.argmax(counts), counts, 0.0)
    return SkipColumn(counter, counts, spans)


def _falls_of(scale: Series) -> SkipColumn:
    """Return the skips that the falls of a scale show: each halving is one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        fallen = -np.diff(np.log2(np.append(scale.values[:1], scale.values)))
    halved = np.nan_to_num(fallen, posinf=1.0, neginf=0.0)
    # A record may also tell of the step of the record before.
    spans = np.diff(scale.steps, prepend=-1.0) + 1
    # A printed scale is rounded, so a little more than one halving is one.
    counts = np.ceil(np.maximum(halved - ROUNDED, 0.0)).astype(np.float64)
    return SkipColumn(scale, counts, spans)


def is_halved(values: Floats) -> bool:
    """Return whether most of the numbers are powers of two; means of scales are not."""
    usable = (values > 0) & np.isfinite(values)
    powers = np.log2(values[usable])
    off = np.abs(powers - np.round(powers))
    return len(powers) > 0 and float(np.mean(off < ROUNDED)) >= 0.8


def halvings(before: float, after: float) -> float:
    """Return by how many halvings a scale is lower than another; 0 if one is 0 or not finite."""
    usable = 0 < before < math.inf and 0 < after < math.inf
    return math.log2(before) - math.log2(after) if usable else 0.0


def lost(values: Floats) -> npt.NDArray[np.bool_]:
    """Return which numbers are NaN or infinite."""
    return ~np.isfinite(values)


def lost_at_end(series: Series) -> int:
    """Return how many numbers at the end of a series are not finite."""
    return equal_at_end(lost(series.values), 1)


def equal_at_end(values: npt.NDArray[np.generic], value: float) -> int:
    """Return how many numbers at the end are equal to a value."""
    others = np.flatnonzero(np.append(True, values != value))
    return len(values) - int(others[-1])


def falls(values: Floats) -> float:
    """Return by what share of its first level a loss fell; 0 if by no more than its noise.

    The level at the end is the median of the last quarter. The first level is the median of the
    first quarter, or of the first records, if the loss fell soon and then stayed low.
    """
    count = len(values)
    if count < 3:
        return 0.0
    quarter = max(1, count // 4)
    early, late = values[:quarter], values[-quarter:]
    level, end = float(np.median(early)), float(np.median(late))
    first = float(np.median(values[: 3 if count >= 20 else 1]))
    least = max(0.002 * abs(level), spread(early) / 2)
    if count < 12:  # its quarters have too few numbers to show their noise
        least = 0.02 * abs(level)
    slow = soon = 0.0
    if level - end > least:
        slow = (level - end) / abs(level)
    if first - end > 3 * spread(late):
        soon = (first - end) / abs(first)
    return max(slow, soon if soon > 0.05 else 0.0)


def spread(values: Floats) -> float:
    """Return the median distance from the median."""
    return float(np.median(np.abs(values - np.median(values))))


def last_descent(scale: Series) -> int:
    """Return the row at which the last fall of a scale begins; the last row if there is none."""
    values = scale.values
    rises = np.flatnonzero(np.append(True, values[1:] > values[:-1]))
    start = int(rises[-1])
    return start + int(np.argmin(np.append(values[start:] == values[start], False))) - 1
