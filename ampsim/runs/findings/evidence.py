"""A history, arranged for the findings: its losses, its loss scale, and its skipped steps."""

import math
import re
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ampsim.runs.read.history import Event, Floats, History, Series

MESSAGES = "loss scale in messages"
"""Name of the series of the scales that sentences name."""
_MAIN_LOSS = re.compile(
    r"^(?:train(?:ing)?[_/ ])?(?:lm |total[_ ]|reduced[_ ]train[_ ]|step[_ ]|train(?:ing)?[_ ]|mlm[_ ])?loss"
    r"(?:[_ ]total|[_ ]step|/train)?$|^train[_/ ]loss|^l$|^nll$"
)


class Skip(NamedTuple):
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
    count: int  # type: ignore[assignment]  # hides tuple.count
    scale: float
    line: int


class SkipColumn:
    """How many steps of each record were skipped, whatever shows it.

    Args:
        series: Numbers that show it; their lines and steps are those of the records.
        skipped: Skipped steps of each record.
        spans: Steps of each record.
        is_flag: Whether a record tells of its own step only.
        ahead: 0 if a record may also tell of the step of the record before, else 1.
    """

    def __init__(
        self,
        series: Series,
        skipped: Any,
        spans: Any,
        *,
        is_flag: bool = False,
        ahead: int = 1,
    ) -> None:
        self.series, self.is_flag, self.ahead = series, is_flag, ahead
        self.skipped: Floats = np.asarray(skipped, np.float64)
        self.spans: Floats = np.asarray(spans, np.float64)
        self.total = int(skipped.sum())

    def skips(self, scales: dict[int, float]) -> list[Skip]:
        """Return the skips of each record; `scales`: the scale on each line."""
        steps, rows = self.series.steps, np.flatnonzero(self.skipped >= 1)
        first = steps if self.is_flag else np.append(0.0, steps[:-1] + self.ahead)
        columns = first[rows], steps[rows], self.skipped[rows], self.series.lines[rows]
        return [
            Skip(low, high, int(count), scales.get(line, math.nan), line)
            for low, high, count, line in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]

    def share(self) -> tuple[float, float] | None:
        """Return the skipped steps and the steps of the second half; None in no order."""
        steps = self.series.steps
        half = len(steps) // 2
        half = half if steps[-1] - steps[half] >= 20 else 0
        spans, skipped = self.spans[half + 1 :], self.skipped[half + 1 :]
        if len(spans) < 1 or not (spans > 0).all():
            return None
        return float(skipped.sum()), float(spans.sum())

    def tail(self) -> tuple[Series, int, int] | None:
        """Return the numbers, the row from which on each step was skipped, and how many steps these
        are at least.
        """
        count = equal_at_end(
            self.skipped == self.spans, 1
        )  # more is no count of these steps
        row = len(self.spans) - count
        known = max(row, 0 if self.is_flag else 1)
        return (self.series, row, int(self.spans[known:].sum())) if count else None


class Evidence:
    """What the findings look at.

    Args:
        history: One run of one log.

    Attributes:
        losses: Training losses; `loss` is the first of them.
        evaluations: Losses of evaluations.
        norm: Gradient norm; None if the log shows none, as `loss` and `scale`.
        rates: Learning rates.
        scales: Loss scales, also those in sentences; `scale` is the most telling of them.
        counters: Counters of skipped steps, since the start or since the line before.
        flags: Whether the step of each record was skipped.
        end: Last line with a number.
    """

    def __init__(self, history: History) -> None:
        self.history, self.events = history, history.events
        self.losses = _training_losses(history.role("loss"))
        self.loss = next(iter(self.losses), None)
        self.evaluations = history.role("evaluation")
        self.norm = self._gradient_norm()
        self.rates = history.role("rate")
        scales = [*history.role("scale"), self._scales_in_events()]
        known = [series.part(~np.isnan(series.values)) for series in scales]
        self.scales = [series for series in known if len(series.finite)]
        counts = [part for each in history.role("skips") if len(part := _counts(each))]
        flags = [each for each in counts if _is_flag(each, history)]
        self.flags = [
            SkipColumn(each, (each.values > 0) * 1.0, np.ones(len(each)), is_flag=True)
            for each in flags
        ]
        self.counters = [_counter(each) for each in counts if each not in flags]
        numbers = [
            *self.losses,
            *self.scales,
            *counts,
            *([self.norm] if self.norm else []),
        ]
        self.end = max((int(each.lines[-1]) for each in numbers), default=0)
        self.scale = max(self.scales, key=self._telling, default=None)

    def _gradient_norm(self) -> Series | None:
        norms = self.history.role("norm")
        longest = max(map(len, self.losses), default=0)
        # A norm that is printed beside overflows only says nothing of the other steps.
        often = [each for each in norms if len(each.finite) or 3 * len(each) >= longest]
        return max(
            often, key=lambda each: ("grad" in each.name, len(each)), default=None
        )

    def _scales_in_events(self) -> Series:
        scales = Series(MESSAGES, "scale")
        for event in self.events:
            for value in (event.before, event.after):
                if math.isfinite(value):
                    scales.add(event.line, event.step, value)
        return scales

    def _telling(self, scale: Series) -> tuple[bool, bool, int]:
        """Return what a scale is chosen by: it reaches the end, it changes, it is long."""
        return (
            bool(scale.lines[-1] >= 0.7 * self.end),
            bool(np.ptp(scale.finite)),
            len(scale),
        )

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
        scale, reported = self.scale, self._reported_skips()
        columns = [*self.counters, *self.flags]
        if not reported and scale is not None and is_halved(scale.values):
            columns.append(_skips_at_falls(scale))
        most = max(columns, key=lambda column: column.total, default=None)
        if most is None or most.total < len(reported):
            return reported
        on_line = (
            zip(scale.lines.tolist(), scale.values.tolist(), strict=True)
            if scale
            else ()
        )
        return most.skips(dict(on_line) if most.is_flag else {})

    @cached_property
    def skips_at_least(self) -> int:
        """How many steps were skipped at least."""
        least = max(
            (column.total for column in [*self.counters, *self.flags]), default=0
        )
        if least and all(column.series.steps_increase for column in self.counters):
            return least  # a counter of one scaler knows better than sentences, which ranks repeat
        return max(least, self._reported_at_least()) or sum(
            skip.count for skip in self.skips
        )

    def _reported_at_least(self) -> int:
        """Return how many skips there are at least if each rank may report each of them."""
        reports = self.kind("skip")
        steps = {event.step for event in reports if math.isfinite(event.step)}
        if steps and all(math.isnan(event.after) for event in reports):
            return len(steps)
        if not any(event.copies > 1 for event in reports):
            return len(reports)
        scales = [event.after for event in reports]
        # The ranks are at most as many as the reports of the first scale.
        ranks = sum(event.copies for event in reports if event.after == scales[0]) or 1
        each = math.ceil(sum(event.copies for event in reports) / ranks)
        return max(each, len(set(scales)))

    @property
    def has_sum_loss(self) -> bool:
        """Whether the loss is large, as a sum over many terms is; such a loss needs a low scale."""
        loss = self.loss
        return (
            loss is not None
            and len(loss.finite) > 0
            and bool(np.median(loss.finite) > 100)
        )

    def _reported_skips(self) -> list[Skip]:
        """Return one skip for each sentence, between the steps of the records around it."""
        columns = [column.series for column in self.counters]
        records = max(
            [*self.losses, *self.scales, *columns], key=len, default=Series("", "")
        )
        steps = np.append(records.steps, math.nan)
        skips = []
        for event in self.kind("skip"):
            row = int(np.searchsorted(records.lines, event.line))
            first, last = steps[row - 1], steps[row]
            if math.isfinite(event.step):
                first = last = event.step
            skips.append(Skip(float(first), float(last), 1, event.before, event.line))
        return skips

    @cached_property
    def counts_exactly(self) -> bool:
        """Whether the log counts each skipped step; one of 0 beside reported skips does not."""
        if not self.counters:
            return bool(self.flags) and self.history.recorded
        return any(column.total for column in self.counters) or not self.kind("skip")

    @cached_property
    def skip_share(self) -> tuple[float, float] | None:
        """Skipped steps and steps of the second half; None if the log does not show them."""
        columns = [*self.counters, *self.flags]
        if not self.counters and self.kind(
            "skip"
        ):  # beside several counters they are of several scalers
            columns += [self._reports_beside(loss) for loss in self.losses]
        return next((share for column in columns if (share := column.share())), None)

    def _reports_beside(self, records: Series) -> SkipColumn:
        """Return the sentences in front of each record, by record."""
        rows = np.searchsorted(
            records.lines, [event.line for event in self.kind("skip")]
        )
        skipped = np.bincount(rows, minlength=len(records) + 1)[:-1]
        return SkipColumn(records, skipped, np.diff(records.steps, prepend=-1.0))

    @cached_property
    def skip_tail(self) -> tuple[Series, int, int] | None:
        """The skipped steps up to the end of the log; None if its last step was taken."""
        tails = (column.tail() for column in [*self.flags, *self.counters])
        return next((tail for tail in tails if tail), None)


def _training_losses(losses: list[Series]) -> list[Series]:
    """Return the training losses: those of usual names, or of the parts of a sum the first."""
    longest = max(map(len, losses), default=0)
    long = [series for series in losses if len(series) >= 0.3 * longest]
    main = [series for series in long if _MAIN_LOSS.search(series.name)]
    if (
        main
        or len(long) <= 3
        or not any(math.isfinite(series.values[-1]) for series in long)
    ):
        return main or long
    return long[:1]


def _counts(series: Series) -> Series:
    """Return the numbers of a series that can be counts."""
    values = series.values
    return series.part((values >= 0) & (values < 2.0**53) & (values % 1 == 0))


def _is_flag(series: Series, history: History) -> bool:
    """Return whether numbers say of each record whether its step was skipped."""
    # A total that ends at 1 and a flag look alike; a flag falls back to 0.
    falls_back = bool(
        np.isin(series.values, (0, 1)).all() and (np.diff(series.values) < 0).any()
    )
    return (
        history.recorded
        or "overflow" in series.name
        or (series.name == "skipped" and falls_back)
    )


def _counter(counter: Series) -> SkipColumn:
    """Return the skips between each two numbers of a counter.

    A counter that falls, and that is more than the steps between its lines, is of several scalers
    or runs: then only its largest number is certain.
    """
    counts, spans = counter.values, np.diff(counter.steps, prepend=0.0)
    # "number of" names a counter since the line before, even if the counter never falls.
    if (np.diff(counts) >= 0).all() and "number of" not in counter.name:
        counts = np.diff(counts, prepend=0.0)
    else:
        spans[0] = counts[0] or 1.0  # the steps before the first line are not known
        if not (counts[1:] <= spans[1:]).all():
            counts = np.where(np.arange(len(counts)) == np.argmax(counts), counts, 0.0)
    return SkipColumn(counter, counts, spans)


def _skips_at_falls(scale: Series) -> SkipColumn:
    """Return the skips that the falls of a scale show: each halving is one."""
    values = np.append(scale.values[0], scale.values)
    pairs = zip(values[:-1].tolist(), values[1:].tolist(), strict=True)
    skipped = np.array(
        [max(after < before, round(halvings(before, after))) for before, after in pairs]
    )
    return SkipColumn(scale, skipped, np.diff(scale.steps, prepend=-1.0), ahead=0)


def is_halved(values: Floats) -> bool:
    """Return whether most of the numbers are powers of two; means of scales are not."""
    positive = values[(values > 0) & np.isfinite(values)]
    return len(positive) > 0 and float(np.mean(np.log2(positive) % 1 == 0)) >= 0.8


def halvings(before: float, after: float) -> float:
    """Return by how many halvings a scale is lower than another; 0 if one is 0 or not finite."""
    usable = 0 < before < math.inf and 0 < after < math.inf
    return math.log2(before) - math.log2(after) if usable else 0.0


def lost(values: Floats) -> npt.NDArray[np.bool_]:
    """Return which numbers are NaN or infinite."""
    return ~np.isfinite(values)


def lost_at_end(series: Series | None) -> int:
    """Return how many numbers at the end of a series are not finite."""
    return 0 if series is None else equal_at_end(lost(series.values), 1)


def equal_at_end(values: npt.NDArray[np.generic], value: float) -> int:
    """Return how many numbers at the end are equal to a value."""
    others = np.flatnonzero(values != value)
    return len(values) - (int(others[-1]) + 1 if len(others) else 0)


def falls(values: Floats) -> float:
    """Return by what share of its first level a loss fell; 0 if by no more than its noise.

    The level at the end is the median of the last quarter. The first level is the median of the
    first quarter, or of the first records, if the loss fell soon and then stayed low.
    """
    if len(values) < 3:
        return 0.0
    quarter, soon = max(1, len(values) // 4), max(1, len(values) // 20)
    early, late = values[:quarter], values[-quarter:]
    level, first, end = (
        float(np.median(part)) for part in (early, values[:soon], late)
    )
    noise, late_noise = (
        float(np.median(np.abs(part - np.median(part)))) for part in (early, late)
    )
    # The quarters of a short log have too few numbers to show their noise.
    least = (
        0.02 * abs(level) if len(values) < 12 else max(0.002 * abs(level), 0.5 * noise)
    )
    if level - end > least:
        return (level - end) / max(abs(level), 1e-300)
    fall = first - end
    return (
        fall / abs(first)
        if fall > max(0.05 * abs(first), 3 * late_noise, 1e-300)
        else 0.0
    )


def last_descent(scale: Series) -> int:
    """Return the row at which the last fall of a scale begins; the last row if there is none."""
    values, last = scale.values, len(scale) - 1
    rises = np.flatnonzero(values[1:] > values[:-1])
    start = int(rises[-1]) + 1 if len(rises) else 0
    while start < last and values[start + 1] == values[start]:
        start += 1
    return start
