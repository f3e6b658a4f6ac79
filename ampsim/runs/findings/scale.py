"""Findings about the loss scale and about skipped steps."""

import math

import numpy as np

from ampsim.runs.findings.evidence import (
    MESSAGES,
    Evidence,
    equal_at_end,
    halvings,
    last_descent,
    lost,
    lost_at_end,
)
from ampsim.runs.findings.finding import Finding, at, counted, first, number_text, of_events
from ampsim.runs.read.history import Series

SEARCH = 24
"""Halvings of the longest usual search for a first scale."""
SUM_SCALE = 2.0**-10
"""A scale that a loss can need that is a sum over many tokens."""
TINY_SCALE = 2.0**-14
LOW_SCALE = 4.0
ENDLESS = 2.0**40
"""A scale at which a gradient of 6e-8 overflows."""


def never_stepped(run: Evidence) -> Finding | None:
    """No optimizer step was taken: each step of the log was skipped."""
    norm, tail = run.norm, run.skip_tail
    if (
        norm is not None
        and len(norm) > 1
        and lost(norm.values).all()
        and run.rates
        and not run.rates[0].values.any()
    ):
        message = (
            f"the gradient norm is not finite on all {len(norm)} records, and the learning rate "
            "is still 0."
        )
        return _never(norm, "likely", message)
    if tail is not None and tail.row == 0:
        is_flag = tail.series in run.flags
        enough = (
            6
            if is_flag and (run.history.recorded or run.has_static_scale)
            else 16
            if is_flag
            else 41
        )
        if tail.steps >= enough or (tail.steps >= 16 and (run.has_static_scale or not run.scales)):
            return _never(
                tail.series, "proved", f"each of {counted(tail.steps, 'step')} was skipped."
            )
    return first(lambda scale: _falls_throughout(run, scale), run.scales)


def _never(series: Series, level: str, message: str) -> Finding:
    return at(
        series,
        0,
        "never-stepped",
        "problem",
        level,
        f"No optimizer step was taken: {message}",
        records=len(series),
    )


def _falls_throughout(run: Evidence, scale: Series) -> Finding | None:
    moves, end = np.diff(scale.values), float(scale.values[-1])
    fallen = int((moves < 0).sum())
    if fallen < 16 or (moves > 0).any() or end >= 1:
        return None
    loss_lost = run.loss is not None and bool(lost(run.loss.values[: fallen + 1]).all())
    norm_lost = run.norm is not None and bool(lost(run.norm.values).all())
    each_falls = (
        run.loss is None
        and fallen >= 0.9 * (len(set(scale.lines.tolist())) - 1)
        and end < SUM_SCALE
    )
    if not (loss_lost or norm_lost or each_falls):
        return None
    what = "the loss is NaN on each record" if loss_lost else "each step overflowed"
    return _never(
        scale,
        "likely",
        f"the loss scale fell from {number_text(scale.values[0])} to {number_text(end)} without "
        f"a rise, and {what}.",
    )


def skipped_to_the_end(run: Evidence) -> Finding | None:
    """After steps were taken, each step up to the end of the log was skipped."""
    tail = run.skip_tail
    if tail is None or tail.row == 0 or tail.steps < 9:
        return None
    message = (
        f"Each of the last {counted(tail.steps, 'step')} of the log was skipped, from "
        f"{tail.series.place(tail.row)} on."
    )
    return at(
        tail.series, tail.row, "skipped-to-the-end", "problem", "proved", message, skips=tail.steps
    )


def scale_collapse(run: Evidence) -> Finding | None:
    """The loss scale fell so far that each gradient overflows at any scale, and did not recover."""
    return first(lambda scale: _collapse(run, scale), run.scales)


def _collapse(run: Evidence, scale: Series) -> Finding | None:
    start = last_descent(scale)
    tail = scale.values[start:]
    top, end, highest = float(tail[0]), float(tail[-1]), float(scale.finite.max())
    told = scale.name == MESSAGES
    rose = bool((np.diff(scale.values) > 0).any())
    settled = rose or start > max(8, 0.1 * len(scale)) or scale.lines[start] > 0.2 * run.end + 30
    settled = settled and not (told and run.finite_losses_after(int(scale.lines[-1])) >= 3)
    to_zero = (
        end == 0
        and (told or (len(scale) > 1 and (highest > 0 or lost_at_end(run.loss) > 0)))
        and not _is_rounded(run, scale)
    )
    small = (0 < end < SUM_SCALE and highest > 1) or 0 < end <= TINY_SCALE
    fallen = int((np.diff(tail) < 0).sum())
    is_series = fallen >= 3 or bool(np.isfinite(scale.steps[-1]))  # and no table of results
    deep = settled and is_series and halvings(top, end) >= 12 and end < 16
    # A scale that was stable falls on the last records, one halving after the other.
    falling = (
        settled and halvings(top, end) >= 8 and fallen >= 8 and bool((np.diff(tail[-3:]) < 0).all())
    )
    if not (small or to_zero or deep or (falling and scale is run.scale)):
        return None
    row = int(np.flatnonzero(scale.values >= max(top, highest / 4))[-1])
    begin = float(scale.values[row])
    message = (
        f"The loss scale fell from {number_text(begin)} at {scale.place(row)} to "
        f"{number_text(end)} at {scale.place(-1)}, "
        "and the log shows no recovery."
    )
    level: str = "proved" if end < 2.0**-24 else "likely"
    return at(scale, row, "scale-collapse", "problem", level, message, **{"from": begin, "to": end})


def _is_rounded(run: Evidence, scale: Series) -> bool:
    """Return whether a program that prints no decimals shows a scale below 1 as 0: then the loss goes on falling."""
    positive = scale.values[scale.values > 0]
    if run.loss is None or not len(positive) or positive[-1] > 4:
        return False
    late = run.loss.between(int(scale.lines[np.argmin(scale.values > 0)]), run.end + 1).finite
    half = len(late) // 2
    return half > 0 and float(np.median(late[half:])) < 0.99 * float(np.median(late[:half]))


def scale_at_minimum(run: Evidence) -> Finding | None:
    """The loss scale is at its minimum, and steps still overflow."""
    stuck = [
        event for event in run.kind("skip") if event.before == event.after and 0 < event.before <= 2
    ]
    stuck = [event for event in stuck if "hysteresis" not in event.text]
    events = sorted(
        [*run.kind("minimum"), *(stuck if len(stuck) > 1 else [])], key=lambda event: event.line
    )
    if events and (
        events[-1].line >= 0.75 * run.history.line_count
        or run.finite_losses_after(events[-1].line) < 5
    ):
        message = (
            f"The program reports {counted(len(events), 'time')} that the loss scale is at its "
            "minimum and steps still overflow, "
            f"first on line {events[0].line}."
        )
        return of_events(
            events, "scale-at-minimum", "problem", "proved", message, times=len(events)
        )
    scale = run.scale
    if scale is None or len(scale) < 8:
        return None
    records = equal_at_end(scale.values, scale.values[-1])
    if records < 6:
        return None
    row = len(scale) - records
    late = max(int(scale.lines[row]), run.end // 2)
    overflows = sum(skip.count for skip in run.skips if skip.line > late)
    if not row or scale.values[-1] > scale.finite.min() or overflows < max(8, 0.5 * records):
        return None
    message = (
        f"The loss scale stays at {number_text(scale.values[-1])} from {scale.place(row)} on, "
        "its lowest value, and "
        f"{counted(overflows, 'step')} overflowed in the second half of the log."
    )
    return at(scale, row, "scale-at-minimum", "problem", "likely", message, times=overflows)


def static_scale_overflows(run: Evidence) -> Finding | None:
    """Steps overflow up to the end of the log at a scale that does not fall."""
    norm = run.norm
    for scale in run.scales:
        value = float(scale.values[0])
        if len(scale) < 5 or (scale.values != value).any() or value <= 1 or scale.name == MESSAGES:
            continue
        late = sum(event.line > 0.5 * run.end for event in run.kind("skip"))
        told = late >= max(6, 0.3 * int((scale.lines > 0.5 * run.end).sum()))
        norms_lost = norm is not None and len(norm) >= 6 and lost(norm.values[-6:]).sum() >= 5
        flagged = any(len(flags) >= 6 and (flags.values[-6:] > 0).sum() >= 5 for flags in run.flags)
        if norms_lost or told or flagged:
            message = (
                f"The loss scale is {number_text(value)} on all {len(scale)} records, while "
                "steps overflow up to the end."
            )
            return at(scale, 0, "static-scale-overflows", "problem", "likely", message, scale=value)
    return None


def overflow_at_low_scale(run: Evidence) -> Finding | None:
    """The last step that the log reports overflowed at a scale at which only huge gradients overflow."""
    events, loss = run.kind("skip"), run.loss
    if (
        not events
        or run.history.line_count - events[-1].line > 12
        or run.finite_losses_after(events[-1].line)
    ):
        return None
    scale = events[-1].before if math.isfinite(events[-1].before) else 2 * events[-1].after
    goes_on = any(
        event.after <= scale and run.finite_losses_after(event.line) >= 3 for event in events[:-1]
    )
    usual = any(
        each.name != MESSAGES and 0 < each.values.min() <= scale and len(each) >= 3
        for each in run.scales
    )
    is_sum = loss is not None and len(loss.finite) > 0 and float(np.median(loss.finite)) > 100
    if not scale <= LOW_SCALE or run.kind("growth") or goes_on or usual or is_sum:
        return None
    bound = number_text(65504 / scale) if scale else "0"
    message = (
        f"The last step that the log reports overflowed at a loss scale of {number_text(scale)} "
        f"(line {events[-1].line}). At "
        f"that scale, float16 overflows only if a gradient is above {bound}, inf, or NaN."
    )
    return of_events(
        events[-1:], "overflow-at-low-scale", "problem", "likely", message, scale=scale
    )


def scale_low(run: Evidence) -> Finding | None:
    """The loss scale ends below 1."""
    for scale in run.scales:
        end, highest, lowest = (
            float(scale.values[-1]),
            float(scale.finite.max()),
            float(scale.finite.min()),
        )
        if not 0 < end < 1 or highest <= end:
            continue
        rises = bool((scale.values[int(np.nanargmin(scale.values)) :] > lowest).any())
        goes_on = scale.name == MESSAGES and run.finite_losses_after(int(scale.lines[-1])) >= 3
        severity = (
            "problem" if highest >= 2 and end <= 0.25 and not rises and not goes_on else "warning"
        )
        message = f"The loss scale fell from {number_text(highest)} to {number_text(end)}, below 1."
        return at(scale, len(scale) - 1, "scale-low", severity, "likely", message, to=end)
    return None


def scale_endless_growth(run: Evidence) -> Finding | None:
    """The loss scale grows without an overflow, because the gradients are 0 or are not scaled."""
    for scale in run.scales:
        end, late = float(scale.values[-1]), scale.values[len(scale) // 2 :]
        zero = any(each is not None and not each.values[-5:].any() for each in (run.norm, run.loss))
        rises = int((np.diff(scale.values) > 0).sum())
        if (
            not (end >= ENDLESS or (rises >= 10 and end > 2.0**31 and zero))
            or (np.diff(late) < 0).any()
        ):
            continue
        typical = (
            float(np.median(run.norm.finite))
            if run.norm is not None and len(run.norm.finite)
            else math.nan
        )
        message = (
            f"The loss scale grew from {number_text(scale.values[0])} to {number_text(end)} and "
            "met no overflow."
        )
        severity = "problem" if math.isinf(end) or zero or typical < 1e-6 else "warning"
        return at(scale, 0, "scale-endless-growth", severity, "likely", message, to=end)
    return None


def skips_too_often(run: Evidence) -> Finding | None:
    """More steps are skipped than a growth interval of usual length allows."""
    skipped, steps = run.skip_share or (0.0, 0.0)
    # A growth interval of 20 steps skips about 5 % of them; few skips are no rate.
    often = 0.055 if run.counts_exactly and skipped >= 50 else 0.08
    if (
        not 5 <= skipped <= steps
        or skipped <= often * steps
        or (skipped < 33 and not _skips_most(skipped, steps) and scale_search(run))
    ):
        return None
    message = (
        f"{100 * skipped / steps:.0f} % of the steps in the second half of the log were skipped "
        f"({'' if run.counts_exactly else 'at least '}{skipped:.0f} of {steps:.0f})."
    )
    level: str = "proved" if run.counts_exactly else "likely"
    return Finding(
        "skips-too-often", "problem", level, message, values={"skipped": skipped, "steps": steps}
    )


def _skips_most(skipped: float, steps: float) -> bool:
    """Return whether more steps are skipped than a search for a first scale would explain."""
    return steps >= 20 and skipped > steps / 2


def scale_search(run: Evidence) -> Finding | None:
    """The loss scale fell in the first steps, as it does in a search for a scale that fits."""
    count = run.history.line_count
    for scale in run.scales:
        values, moves = scale.values, np.diff(scale.values)
        rows = np.flatnonzero(moves < 0)
        if (
            not len(rows)
            or (moves > 0).any()
            or rows[0] > 3
            or not 1 <= halvings(values[0], values[-1]) <= SEARCH
        ):
            continue
        soon = scale.lines[rows[-1] + 1] - scale.lines[0] <= max(60, 0.1 * count)
        if soon and scale.lines[0] <= 0.3 * count + 30:
            message = (
                f"The loss scale fell from {number_text(values[0])} to {number_text(values[-1])} "
                "in the first steps: the usual "
                "search for a scale that fits."
            )
            return at(scale, 0, "scale-search", "info", "likely", message)
    return None


def skipped_steps(run: Evidence) -> Finding | None:
    """Steps were skipped, which alone is no problem."""
    least = run.skips_at_least
    if not run.skips or not least:
        return None
    skip = run.skips[0]
    where = "" if math.isnan(skip.last) else f", the first at step {skip.last:.0f}"
    where = where.replace("at", "up to") if skip.first != skip.last else where
    exact = "" if run.counts_exactly else "At least "
    message = f"{exact}{counted(least, 'step')} {'was' if least == 1 else 'were'} skipped{where}."
    lines = tuple(skip.line for skip in run.skips[:40])
    return Finding("skipped-steps", "info", "likely", message, lines, skip.last, {"skips": least})


def overflow_burst(run: Evidence) -> Finding | None:
    """Several steps in a row were skipped in the middle of a run that went on."""
    steps = np.array(
        [skip.first for skip in run.skips if skip.first == skip.last and skip.count == 1]
    )
    starts = np.append(0, np.flatnonzero(np.diff(steps) != 1) + 1)
    lengths = np.diff(np.append(starts, len(steps)))
    if not len(steps) or lengths.max() < 3 or scale_search(run):
        return None
    begin = float(steps[starts[np.argmax(lengths)]])
    message = f"{lengths.max()} steps in a row were skipped from step {begin:.0f} on."
    return Finding(
        "overflow-burst",
        "info",
        "likely",
        message,
        step=begin,
        values={"skips": int(lengths.max())},
    )
