"""Findings about the loss scale and about skipped steps."""

import math
from collections.abc import Iterator

import numpy as np

from ampsim.runs.findings.evidence import (
    MESSAGES,
    Evidence,
    equal_at_end,
    falls,
    halvings,
    last_descent,
    lost_at_end,
)
from ampsim.runs.findings.finding import (
    Finding,
    at,
    make,
    number_text,
    of_events,
)
from ampsim.runs.read.history import Floats, Series

SEARCH = 24
"""Halvings of the longest usual search for a first scale."""
SUM_SCALE = 2.0**-10
"""A scale that a loss can need that is a sum over many tokens."""
COLLAPSE = 4
"""Halvings from which on a fall of a scale to the end of a log is a collapse."""
LOW_SCALE = 4.0
ENDLESS = 2.0**40
"""A scale at which a gradient of 6e-8 overflows."""


def never_stepped(run: Evidence) -> Iterator[Finding]:
    """No optimizer step was taken: each step of the log was skipped."""
    norm = run.norm
    if any(len(loss.finite) and lost_at_end(loss) for loss in run.losses):
        return  # a loss that was finite before shows that steps were taken
    is_rate_zero = bool(run.rates) and not run.rates[0].values.any()
    if norm and not len(norm.finite) and is_rate_zero:
        why = "no gradient norm is finite, and the learning rate is 0"
        yield at(norm, 0, "never-stepped", why=why)
    # A search for a first scale skips steps, too.
    enough = 6 if run.has_static_scale else 41
    for skipped in [*run.flags, *run.counters]:
        if skipped.total >= enough and (skipped.counts == skipped.spans).all():
            why = f"each of {skipped.total} steps was skipped"
            yield at(skipped.records, 0, "never-stepped", level="proved", why=why)


def scale_collapse(run: Evidence) -> Iterator[Finding]:
    """The loss scale fell so far that each gradient overflows at any scale, and did not recover."""
    for scale in run.scales:
        start = last_descent(scale)
        tail, highest = scale.values[start:], float(scale.finite.max())
        top, end = float(tail[0]), float(tail[-1])
        # A first search ends; what falls later is no search.
        settled = start > 8
        collapsed = (
            0 < end < SUM_SCALE,
            end == 0 and not _is_rounded(run, scale),
            settled and halvings(top, end) >= 12,
        )
        if any(collapsed):
            row = int(np.flatnonzero(scale.values >= max(top, highest / 4))[-1])
            level = "proved" if end < 2.0**-24 else "likely"
            begin, place = number_text(scale.values[row]), scale.place(row)
            fallen = f"fell from {begin} at {place} to"
            change = fallen if row < len(scale) - 1 else "is"
            fields = {"change": change, "end": end, "last": scale.place(-1)}
            yield at(scale, row, "scale-collapse", level=level, **fields)


def _is_rounded(run: Evidence, scale: Series) -> bool:
    """Return whether a scale below 1 is printed as 0, without decimals: then the loss still falls."""
    last = scale.lines[scale.values > 0]
    if not len(last):
        return scale.name != MESSAGES  # a scaler that is off
    return falls(run.loss.between(last[-1], run.end + 1).finite) > 0


def scale_at_minimum(run: Evidence) -> Iterator[Finding]:
    """The loss scale is at its minimum, and steps still overflow."""
    skips = [event for event in run.kind("skip") if "hysteresis" not in event.text]
    stuck = [event for event in skips if event.before == event.after > 0]
    events = run.kind("minimum") or (stuck if len(stuck) > 1 else [])
    if events and run.finite_losses_after(events[-1].line) < 5:
        words = "its minimum, as the program reports"
        yield of_events(events, "scale-at-minimum", level="proved", value=words)
    scale = run.scale
    if not scale or scale.values[-1] > scale.finite.min():
        return
    value = float(scale.values[-1])
    records = equal_at_end(scale.values, value)
    row = len(scale) - records
    line = int(scale.lines[row])
    late = max(line, run.end // 2)
    overflows = sum(skip.count for skip in run.skips if skip.line > late)
    if row and overflows >= max(8, 0.5 * records):
        fields = {"times": overflows, "value": value, "line": line}
        yield at(scale, row, "scale-at-minimum", **fields)


def static_scale_overflows(run: Evidence) -> Iterator[Finding]:
    """Steps overflow up to the end of the log at a scale that does not fall."""
    middle = 0.5 * run.end
    reports = sum(event.line > middle for event in run.kind("skip"))
    for scale in run.scales:
        value, late = float(scale.values[0]), (scale.lines > middle).sum()
        is_static = len(scale) >= 5 and value > 1 and not np.ptp(scale.values)
        overflows = reports >= max(6, 0.3 * late)
        if is_static and scale.name != MESSAGES and overflows:
            yield at(scale, 0, "static-scale-overflows", scale=value)


def overflow_at_low_scale(run: Evidence) -> Iterator[Finding]:
    """The last step of the log overflowed at a scale at which only huge gradients overflow."""
    for last in run.kind("skip")[-1:]:
        scale = last.before if math.isfinite(last.before) else 2 * last.after
        if scale <= LOW_SCALE and not run.finite_losses_after(last.line):
            bound = 65504 / scale if scale else 0.0
            yield of_events([last], "overflow-at-low-scale", scale=scale, bound=bound)


def scale_low(run: Evidence) -> Iterator[Finding]:
    """The loss scale ends below 1."""
    for scale in run.scales:
        end, highest = float(scale.values[-1]), float(scale.finite.max())
        if not 0 < end < min(1, highest):
            continue
        late = scale.values[int(np.nanargmin(scale.values)) :]
        goes_on = scale.name == MESSAGES and run.finite_losses_after(
            int(scale.lines[-1])
        )
        is_sick = highest >= 2 and not (goes_on or np.ptp(late))
        severity = "problem" if is_sick else "warning"
        fields = {"highest": highest, "end": end}
        yield at(scale, len(scale) - 1, "scale-low", severity=severity, **fields)


def scale_endless_growth(run: Evidence) -> Iterator[Finding]:
    """The loss scale grows without an overflow, because the gradients are 0 or are not scaled."""
    norm = run.norm
    zero = any(each and not each.values[-5:].any() for each in (norm, run.loss))
    tiny = len(norm.finite) and np.median(norm.finite) < 1e-6
    for scale in run.scales:
        end = float(scale.values[-1])
        if end >= (2.0**31 if zero else ENDLESS):
            severity = "problem" if math.isinf(end) or zero or tiny else "warning"
            fields = {"begin": float(scale.values[0]), "end": end}
            yield at(scale, 0, "scale-endless-growth", severity=severity, **fields)


def skips_too_often(run: Evidence) -> Iterator[Finding]:
    """More steps are skipped than a growth interval of usual length allows."""
    skipped, steps = map(int, run.skip_share)
    # A growth interval of 20 steps skips about 5 % of them; few skips are no rate.
    often = 0.055 if run.counts_exactly and skipped >= 50 else 0.08
    is_often = skipped > (often if skipped >= 10 else 0.2) * steps
    is_search_possible = skipped < 33 and skipped <= max(10, steps / 2)
    if is_search_possible and (not run.scales or any(map(is_search, run.scales))):
        return
    if is_often and 5 <= skipped <= steps:
        level = "proved" if run.counts_exactly else "likely"
        yield make(
            "skips-too-often",
            level=level,
            share=f"{100 * skipped / steps:.0f}",
            skipped=skipped,
            steps=steps,
        )


def is_search(scale: Series) -> bool:
    """Return whether a scale fell in the first steps only, as in a search for a scale that fits."""
    moves = np.diff(scale.values)
    rows = np.flatnonzero(moves < 0)
    if not len(rows) or rows[0] > 3 or (moves > 0).any():
        return False
    soon = scale.lines[rows[-1] + 1] - scale.lines[0] <= max(60, 0.1 * scale.lines[-1])
    return bool(soon) and halvings(scale.values[0], scale.values[-1]) <= SEARCH


def skipped_steps(run: Evidence) -> Iterator[Finding]:
    """Steps were skipped, which alone is no problem."""
    for skip in run.skips[:1]:
        is_counted = any(each.total for each in [*run.counters, *run.flags])
        exact = "" if run.counts_exactly and is_counted else "at least "
        where = ""
        if math.isfinite(skip.last):
            bound = "" if skip.first == skip.last else "at most "
            where = f"; the first is {bound}step {skip.last:.0f}"
        yield make(
            "skipped-steps",
            [each.line for each in run.skips],
            skip.last,
            exact=exact,
            skips=run.skips_at_least,
            where=where,
        )


def before_collapse(run: Evidence) -> Floats:
    """Return the loss scales of a run, without a fall to its end and without those after the last
    finite loss.
    """
    scale, usable = run.scale, run.scale.values
    if scale:
        top = last_descent(scale)
        fallen = halvings(float(usable[top]), float(usable[-1]))
        is_lost = fallen >= COLLAPSE or usable[-1] < 1
        usable = usable[: top + 1] if is_lost else usable
    for loss in run.losses:
        if (lost := lost_at_end(loss)) > 1:
            usable = usable[scale.lines[: len(usable)] < loss.lines[-lost]]
    return usable[(usable >= 1) & np.isfinite(usable)]
