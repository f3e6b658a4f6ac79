"""Findings about the loss scale and about skipped steps."""

import math

import numpy as np

from ampsim.runs.findings.evidence import (
    MESSAGES,
    Evidence,
    equal_at_end,
    falls,
    halvings,
    last_descent,
    lost,
    lost_at_end,
)
from ampsim.runs.findings.finding import Finding, at, first, make, of_events
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
    if any(len(loss.finite) and lost_at_end(loss) for loss in run.losses):
        return None  # a loss that was finite before shows that steps were taken
    norm, scale = run.norm, run.scale
    norm_lost = norm is not None and bool(lost(norm.values).all())
    if norm is not None and norm_lost and run.rates and not run.rates[0].values.any():
        why = (
            "the gradient norm is not finite on each record, and the learning rate is 0"
        )
        return at(norm, 0, "never-stepped", why=why)
    # A search for a first scale skips steps, too.
    enough = 6 if run.has_static_scale else 41 if run.scales else 16
    series, row, skips = run.skip_tail or (None, 0, 0)
    if series is not None and row == 0 and skips >= enough:
        why = f"each of {skips} steps was skipped"
        return at(series, 0, "never-stepped", level="proved", why=why)
    if scale is None:
        return None
    moves = np.diff(scale.values)
    fallen = int((moves < 0).sum())
    loss_lost = run.loss is not None and bool(lost(run.loss.values[: fallen + 1]).all())
    if fallen < 16 or (moves > 0).any() or not (loss_lost or norm_lost):
        return None
    if not (scale.steps[0] <= 1 and scale.steps[fallen] <= scale.steps[0] + fallen):
        return None  # steps between the records, or before them, may have been taken
    what = "no loss" if loss_lost else "no gradient norm"
    why = (
        f"the loss scale fell {fallen} times without a rise, and {what} is finite there"
    )
    return at(scale, 0, "never-stepped", why=why)


def skipped_to_the_end(run: Evidence) -> Finding | None:
    """After steps were taken, each step up to the end of the log was skipped."""
    series, row, skips = run.skip_tail or (None, 0, 0)
    if series is None or row == 0 or skips < 9:
        return None
    return at(series, row, "skipped-to-the-end", skips=skips)


def scale_collapse(run: Evidence) -> Finding | None:
    """The loss scale fell so far that each gradient overflows at any scale, and did not recover."""
    return first(lambda scale: _collapse(run, scale), run.scales)


def _collapse(run: Evidence, scale: Series) -> Finding | None:
    start = last_descent(scale)
    tail = scale.values[start:]
    top, end, highest = float(tail[0]), float(tail[-1]), float(scale.finite.max())
    fallen = int((np.diff(tail) < 0).sum())
    # A first search ends; what falls later, or after a rise, is no search.
    settled = bool((np.diff(scale.values) > 0).any()) or start > max(
        8, 0.1 * len(scale)
    )
    if run.finite_losses_after(int(scale.lines[-1])) >= 3:
        settled = False
    collapsed = (
        0 < end < SUM_SCALE and (highest > 1 or end <= TINY_SCALE),
        end == 0
        and (scale.name == MESSAGES or highest > 0)
        and not _is_rounded(run, scale),
        settled and fallen >= 3 and halvings(top, end) >= 12,
        # A scale that was stable falls on the last records, one halving after the other.
        settled and fallen >= 8 and (np.diff(tail[-3:]) < 0).all(),
    )
    if not any(collapsed):
        return None
    row = int(np.flatnonzero(scale.values >= max(top, highest / 4))[-1])
    level = "proved" if end < 2.0**-24 else "likely"
    begin, last = float(scale.values[row]), scale.place(-1)
    return at(
        scale, row, "scale-collapse", level=level, begin=begin, end=end, last=last
    )


def _is_rounded(run: Evidence, scale: Series) -> bool:
    """Return whether a scale below 1 is printed as 0, without decimals: then the loss still falls."""
    last = scale.lines[scale.values > 0]
    if run.loss is None or not len(last):
        return False
    return falls(run.loss.between(int(last[-1]), run.end + 1).finite) > 0


def scale_at_minimum(run: Evidence) -> Finding | None:
    """The loss scale is at its minimum, and steps still overflow."""
    skips = [event for event in run.kind("skip") if "hysteresis" not in event.text]
    stuck = [event for event in skips if event.before == event.after > 0]
    events = run.kind("minimum") or stuck * (
        len(stuck) > 1 and stuck[-2:] == skips[-2:]
    )
    if events and run.finite_losses_after(events[-1].line) < 5:
        words = "its minimum, as the program reports"
        return of_events(events, "scale-at-minimum", level="proved", value=words)
    scale = run.scale
    if scale is None or scale.values[-1] > scale.finite.min():
        return None
    records = equal_at_end(scale.values, scale.values[-1])
    row = len(scale) - records
    late = max(int(scale.lines[row]), run.end // 2)
    overflows = sum(skip.count for skip in run.skips if skip.line > late)
    if not row or overflows < max(8, 0.5 * records):
        return None
    value, line = float(scale.values[-1]), int(scale.lines[row])
    return at(scale, row, "scale-at-minimum", times=overflows, value=value, line=line)


def static_scale_overflows(run: Evidence) -> Finding | None:
    """Steps overflow up to the end of the log at a scale that does not fall."""
    return first(lambda scale: _static_overflows(run, scale), run.scales)


def _static_overflows(run: Evidence, scale: Series) -> Finding | None:
    value, middle = float(scale.values[0]), 0.5 * run.end
    if (
        len(scale) < 5
        or (scale.values != value).any()
        or value <= 1
        or scale.name == MESSAGES
    ):
        return None
    reports = sum(event.line > middle for event in run.kind("skip"))
    norm_lost = run.norm is not None and int(lost(run.norm.values[-6:]).sum()) >= 5
    if not norm_lost and reports < max(6, 0.3 * int((scale.lines > middle).sum())):
        return None
    return at(scale, 0, "static-scale-overflows", scale=value)


def overflow_at_low_scale(run: Evidence) -> Finding | None:
    """The last step of the log overflowed at a scale at which only huge gradients overflow."""
    events = run.kind("skip")
    if not events or run.finite_losses_after(events[-1].line) or run.has_sum_loss:
        return None
    last = events[-1]
    scale = last.before if math.isfinite(last.before) else 2 * last.after
    if not scale <= LOW_SCALE:
        return None
    bound = 65504 / scale if scale else 0.0
    return of_events([last], "overflow-at-low-scale", scale=scale, bound=bound)


def scale_low(run: Evidence) -> Finding | None:
    """The loss scale ends below 1."""
    return first(lambda scale: _low(run, scale), run.scales)


def _low(run: Evidence, scale: Series) -> Finding | None:
    end, highest = float(scale.values[-1]), float(scale.finite.max())
    if not 0 < end < 1 or highest <= end:
        return None
    lowest = int(np.nanargmin(scale.values))
    goes_on = (
        scale.name == MESSAGES and run.finite_losses_after(int(scale.lines[-1])) >= 3
    )
    goes_on = goes_on or bool((scale.values[lowest:] > scale.values[lowest]).any())
    severity = "problem" if highest >= 2 and not goes_on else "warning"
    row = len(scale) - 1
    return at(scale, row, "scale-low", severity=severity, highest=highest, end=end)


def scale_endless_growth(run: Evidence) -> Finding | None:
    """The loss scale grows without an overflow, because the gradients are 0 or are not scaled."""
    return first(lambda scale: _endless(run, scale), run.scales)


def _endless(run: Evidence, scale: Series) -> Finding | None:
    norm, begin, end = run.norm, float(scale.values[0]), float(scale.values[-1])
    zero = any(
        each is not None and not each.values[-5:].any() for each in (norm, run.loss)
    )
    if end < (2.0**31 if zero else ENDLESS):
        return None
    tiny = norm is not None and bool(np.median(norm.finite) < 1e-6)
    severity = "problem" if math.isinf(end) or zero or tiny else "warning"
    return at(scale, 0, "scale-endless-growth", severity=severity, begin=begin, end=end)


def skips_too_often(run: Evidence) -> Finding | None:
    """More steps are skipped than a growth interval of usual length allows."""
    skipped, steps = run.skip_share or (0.0, 0.0)
    # A growth interval of 20 steps skips about 5 % of them; few skips are no rate.
    often = 0.055 if run.counts_exactly and skipped >= 50 else 0.08
    if (
        not 5 <= skipped <= steps
        or skipped <= (often if skipped >= 10 else 0.2) * steps
    ):
        return None
    is_search_possible = skipped < 33 and skipped <= max(10, steps / 2)
    if is_search_possible and (not run.scales or any(map(is_search, run.scales))):
        return None
    level = "proved" if run.counts_exactly else "likely"
    share = f"{100 * skipped / steps:.0f}"
    skipped, steps = int(skipped), int(steps)
    return make(
        "skips-too-often", level=level, share=share, skipped=skipped, steps=steps
    )


def is_search(scale: Series) -> bool:
    """Return whether a scale fell in the first steps only, as in a search for a scale that fits."""
    moves = np.diff(scale.values)
    rows = np.flatnonzero(moves < 0)
    if not len(rows) or rows[0] > 3 or (moves > 0).any():
        return False
    soon = scale.lines[rows[-1] + 1] - scale.lines[0] <= max(60, 0.1 * scale.lines[-1])
    return bool(soon) and halvings(scale.values[0], scale.values[-1]) <= SEARCH


def skipped_steps(run: Evidence) -> Finding | None:
    """Steps were skipped, which alone is no problem."""
    if not run.skips:
        return None
    skip, count = run.skips[0], run.skips_at_least
    exact = "" if run.counts_exactly else "at least "
    where = (
        "" if math.isnan(skip.last) else f"; the first is at most step {skip.last:.0f}"
    )
    lines = [each.line for each in run.skips]
    return make(
        "skipped-steps", lines, skip.last, exact=exact, skips=count, where=where
    )
