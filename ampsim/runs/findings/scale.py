"""Findings about the loss scale and about skipped steps."""

import math

import numpy as np

from ampsim.runs.findings.evidence import (
    MESSAGES,
    Evidence,
    equal_at_end,
    falls,
    halvings,
    is_halved,
    last_descent,
    lost,
    lost_at_end,
)
from ampsim.runs.findings.finding import Finding, at, counted, first, make, number_text, of_events
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
    norm, tail, scale = run.norm, run.skip_tail, run.scale
    if any(len(loss.finite) and lost_at_end(loss) for loss in run.losses):
        return None  # a loss that was finite before shows that steps were taken
    text, prefix = "", "No optimizer step was taken:"
    norm_lost = norm is not None and len(norm) > 1 and bool(lost(norm.values).all())
    if norm is not None and norm_lost and run.rates and not run.rates[0].values.any():
        records = f"all {len(norm)} records"
        text = f"the gradient norm is not finite on {records}, and the learning rate is 0."
        return at(norm, 0, "never-stepped", f"{prefix} {text}", records=len(norm))
    # A search for a first scale skips steps, too.
    enough = 6 if run.has_static_scale else 41 if run.scales else 16
    if tail is not None and tail.row == 0 and tail.steps >= enough:
        text = f"each of {counted(tail.steps, 'step')} was skipped."
        return at(tail.column.series, 0, "never-stepped", f"{prefix} {text}", level="proved")
    if scale is None:
        return None
    moves, end = np.diff(scale.values), float(scale.values[-1])
    fallen = int((moves < 0).sum())
    loss_lost = run.loss is not None and bool(lost(run.loss.values[: fallen + 1]).all())
    if fallen < 16 or (moves > 0).any() or end >= 1 or not (loss_lost or norm_lost):
        return None
    change = f"from {number_text(scale.values[0])} to {number_text(end)} without a rise"
    what = "the loss is NaN on each record" if loss_lost else "each step overflowed"
    text = f"the loss scale fell {change}, and {what}."
    return at(scale, 0, "never-stepped", f"{prefix} {text}")


def skipped_to_the_end(run: Evidence) -> Finding | None:
    """After steps were taken, each step up to the end of the log was skipped."""
    tail = run.skip_tail
    if tail is None or tail.row == 0 or tail.steps < 9:
        return None
    series = tail.column.series
    steps, place = counted(tail.steps, "step"), series.place(tail.row)
    message = f"Each of the last {steps} of the log was skipped, from {place} on."
    return at(series, tail.row, "skipped-to-the-end", message, skips=tail.steps)


def scale_collapse(run: Evidence) -> Finding | None:
    """The loss scale fell so far that each gradient overflows at any scale, and did not recover."""
    return first(lambda scale: _collapse(run, scale), run.scales)


def _collapse(run: Evidence, scale: Series) -> Finding | None:
    start = last_descent(scale)
    tail = scale.values[start:]
    top, end, highest = float(tail[0]), float(tail[-1]), float(scale.finite.max())
    is_reported = scale.name == MESSAGES
    rose = bool((np.diff(scale.values) > 0).any())
    fallen = int((np.diff(tail) < 0).sum())
    # A first search ends; what falls later, or after a rise, is no search.
    settled = rose or start > max(8, 0.1 * len(scale)) or scale.lines[start] > 0.2 * run.end + 30
    if is_reported and run.finite_losses_after(int(scale.lines[-1])) >= 3:
        settled = False
    in_steps = fallen >= 3 or bool(np.isfinite(scale.steps[-1]))  # and no table of results
    to_zero = is_reported or (len(scale) > 1 and (highest > 0 or lost_at_end(run.loss) > 0))
    collapsed = (
        0 < end <= TINY_SCALE,
        0 < end < SUM_SCALE and highest > 1,
        end == 0 and to_zero and not _is_rounded(run, scale),
        settled and in_steps and halvings(top, end) >= 12 and end < 16,
        # A scale that was stable falls on the last records, one halving after the other.
        settled
        and scale is run.scale
        and fallen >= 8
        and halvings(top, end) >= 8
        and (np.diff(tail[-3:]) < 0).all(),
    )
    if not any(collapsed):
        return None
    row = int(np.flatnonzero(scale.values >= max(top, highest / 4))[-1])
    begin = float(scale.values[row])
    before = f"{number_text(begin)} at {scale.place(row)}"
    after = f"{number_text(end)} at {scale.place(-1)}"
    message = f"The loss scale fell from {before} to {after}, and the log shows no recovery."
    level = "proved" if end < 2.0**-24 else "likely"
    return at(scale, row, "scale-collapse", message, level=level, **{"from": begin, "to": end})


def _is_rounded(run: Evidence, scale: Series) -> bool:
    """Return whether a scale below 1 is printed as 0, without decimals: then the loss still falls."""
    last = scale.lines[scale.values > 0]
    late = run.loss.between(int(last[-1]), run.end + 1) if run.loss and len(last) else None
    return late is not None and falls(late.finite) > 0


def scale_at_minimum(run: Evidence) -> Finding | None:
    """The loss scale is at its minimum, and steps still overflow."""
    skips = [event for event in run.kind("skip") if "hysteresis" not in event.text]
    stuck = [event for event in skips if event.before == event.after > 0]
    events = run.kind("minimum") or stuck * (len(stuck) > 1 and stuck[-2:] == skips[-2:])
    if events and run.finite_losses_after(events[-1].line) < 5:
        times, line = counted(len(events), "time"), events[0].line
        message = (
            f"The program reports {times} that the loss scale is at its minimum and steps still "
            f"overflow, first on line {line}."
        )
        options = {"level": "proved", "times": len(events)}
        return of_events(events, "scale-at-minimum", message, **options)
    scale = run.scale
    if scale is None or len(scale) < 8 or scale.values[-1] > scale.finite.min():
        return None
    records = equal_at_end(scale.values, scale.values[-1])
    row = len(scale) - records
    late = max(int(scale.lines[row]), run.end // 2)
    overflows = sum(skip.count for skip in run.skips if skip.line > late)
    if not row or records < 6 or overflows < max(8, 0.5 * records):
        return None
    message = (
        f"The loss scale stays at {number_text(scale.values[-1])} from {scale.place(row)} on, its "
        f"lowest value, and {counted(overflows, 'step')} overflowed in the second half of the log."
    )
    return at(scale, row, "scale-at-minimum", message, times=overflows)


def static_scale_overflows(run: Evidence) -> Finding | None:
    """Steps overflow up to the end of the log at a scale that does not fall."""
    return first(lambda scale: _static_overflows(run, scale), run.scales)


def _static_overflows(run: Evidence, scale: Series) -> Finding | None:
    value, norm, middle = float(scale.values[0]), run.norm, 0.5 * run.end
    if len(scale) < 5 or (scale.values != value).any() or value <= 1 or scale.name == MESSAGES:
        return None
    reports = sum(event.line > middle for event in run.kind("skip"))
    last = [flags.skipped[-6:] for flags in run.flags]
    last += [lost(norm.values[-6:]).astype(float)] if norm is not None else []
    overflows = any(len(each) == 6 and each.sum() >= 5 for each in last)
    if not overflows and reports < max(6, 0.3 * int((scale.lines > middle).sum())):
        return None
    what = f"{number_text(value)} on all {len(scale)} records"
    message = f"The loss scale is {what}, while steps overflow up to the end."
    return at(scale, 0, "static-scale-overflows", message, scale=value)


def overflow_at_low_scale(run: Evidence) -> Finding | None:
    """The last step of the log overflowed at a scale at which only huge gradients overflow."""
    events = run.kind("skip")
    last = events[-1] if events else None
    if (
        last is None
        or run.history.line_count - last.line > 12
        or run.finite_losses_after(last.line)
    ):
        return None
    scale = last.before if math.isfinite(last.before) else 2 * last.after
    if not scale <= LOW_SCALE or run.kind("growth") or run.has_sum_loss:
        return None
    bound = number_text(65504 / scale) if scale else "0"
    message = (
        f"The last step that the log reports overflowed at a loss scale of {number_text(scale)} "
        f"(line {last.line}). At that scale, float16 overflows only if a gradient is above "
        f"{bound}, inf, or NaN."
    )
    return of_events([last], "overflow-at-low-scale", message, scale=scale)


def scale_low(run: Evidence) -> Finding | None:
    """The loss scale ends below 1."""
    return first(lambda scale: _low(run, scale), run.scales)


def _low(run: Evidence, scale: Series) -> Finding | None:
    end, highest = float(scale.values[-1]), float(scale.finite.max())
    lowest = int(np.nanargmin(scale.values))
    if not 0 < end < 1 or highest <= end:
        return None
    goes_on = scale.name == MESSAGES and run.finite_losses_after(int(scale.lines[-1])) >= 3
    goes_on = goes_on or (scale.values[lowest:] > scale.values[lowest]).any()
    severity = "problem" if highest >= 2 and end <= 0.25 and not goes_on else "warning"
    message = f"The loss scale fell from {number_text(highest)} to {number_text(end)}, below 1."
    return at(scale, len(scale) - 1, "scale-low", message, severity=severity, to=end)


def scale_endless_growth(run: Evidence) -> Finding | None:
    """The loss scale grows without an overflow, because the gradients are 0 or are not scaled."""
    return first(lambda scale: _endless(run, scale), run.scales)


def _endless(run: Evidence, scale: Series) -> Finding | None:
    values, norm = scale.values, run.norm
    end = float(values[-1])
    zero = any(each is not None and not each.values[-5:].any() for each in (norm, run.loss))
    if end < (2.0**31 if zero else ENDLESS) or (np.diff(values[len(values) // 2 :]) < 0).any():
        return None
    tiny = norm is not None and len(norm.finite) > 0 and float(np.median(norm.finite)) < 1e-6
    change = f"from {number_text(values[0])} to {number_text(end)}"
    message = f"The loss scale grew {change} and met no overflow."
    severity = "problem" if math.isinf(end) or zero or tiny else "warning"
    return at(scale, 0, "scale-endless-growth", message, severity=severity, to=end)


def skips_too_often(run: Evidence) -> Finding | None:
    """More steps are skipped than a growth interval of usual length allows."""
    skipped, steps = run.skip_share or (0.0, 0.0)
    # A growth interval of 20 steps skips about 5 % of them; few skips are no rate.
    often = 0.055 if run.counts_exactly and skipped >= 50 else 0.08
    if not 5 <= skipped <= steps or skipped <= (often if skipped >= 10 else 0.2) * steps:
        return None
    is_more_than_search = skipped >= 33 or skipped > max(10, steps / 2)
    if not is_more_than_search and (not run.scales or any(map(is_search, run.scales))):
        return None
    share = f"{100 * skipped / steps:.0f} % of the steps in the second half of the log"
    exact = "" if run.counts_exactly else "at least "
    message = f"{share} were skipped ({exact}{skipped:.0f} of {steps:.0f})."
    level = "proved" if run.counts_exactly else "likely"
    return make("skips-too-often", message, level=level, skipped=skipped, steps=steps)


def is_search(scale: Series) -> bool:
    """Return whether a scale fell in the first steps only, as in a search for a scale that fits."""
    values, moves = scale.values, np.diff(scale.values)
    rows = np.flatnonzero(moves < 0)
    if not len(rows) or rows[0] > 3 or (moves > 0).any():
        return False
    soon = scale.lines[rows[-1] + 1] - scale.lines[0] <= max(60, 0.1 * scale.lines[-1])
    return bool(soon) and 1 <= halvings(values[0], values[-1]) <= SEARCH


def skipped_steps(run: Evidence) -> Finding | None:
    """Steps were skipped, which alone is no problem."""
    least = run.skips_at_least
    if not run.skips or not least:
        return None
    skip = run.skips[0]
    where = f", the first {'at' if skip.first == skip.last else 'up to'} step {skip.last:.0f}"
    where = "" if math.isnan(skip.last) else where
    exact = "" if run.counts_exactly else "At least "
    message = f"{exact}{counted(least, 'step')} {'was' if least == 1 else 'were'} skipped{where}."
    return make("skipped-steps", message, [each.line for each in run.skips], skip.last, skips=least)


def overflow_burst(run: Evidence) -> Finding | None:
    """Several steps in a row were skipped in the middle of a run that went on."""
    placed = [skip.first for skip in run.skips if skip.first == skip.last and skip.count == 1]
    steps = np.array(placed)
    starts = np.append(0, np.flatnonzero(np.diff(steps) != 1) + 1)
    lengths = np.diff(np.append(starts, len(steps)))
    if not len(steps) or lengths.max() < 3 or any(map(is_search, run.scales)):
        return None
    begin, count = float(steps[starts[np.argmax(lengths)]]), int(lengths.max())
    message = f"{count} steps in a row were skipped from step {begin:.0f} on."
    return make("overflow-burst", message, step=begin, skips=count)


def scale_recovers_slowly(run: Evidence) -> Finding | None:
    """The loss scale fell in the middle of a run that went on, and has not come back."""
    scale = run.scale
    if scale is None or not is_halved(scale.values):
        return None
    start, last = last_descent(scale), equal_at_end(scale.values, scale.values[-1])
    fallen = halvings(float(scale.values[start]), float(scale.values[-1]))
    if fallen < 2 or start < 0.1 * len(scale) or last < max(8, 0.3 * len(scale)):
        return None
    change = f"from {number_text(scale.values[start])} to {number_text(scale.values[-1])}"
    place = scale.place(max(len(scale) - last - 1, 0))
    message = f"The loss scale fell {change} around {place}, and has not risen since."
    return at(scale, start, "scale-recovers-slowly", message, halvings=fallen)
