"""The verdict on a run: a problem, no problem found, or too little to tell.

No problem is found in a run if the log shows that optimizer steps were taken up to its end, and if
nothing casts doubt on it. `_steps_were_taken` has what an engineer takes as enough evidence for the
first, and `doubts` what is against the second. Both are likely, not proved.
"""

from collections.abc import Iterator

import numpy as np

from ampsim.runs.findings.evidence import (
    MESSAGES,
    NOTHING,
    Evidence,
    falls,
    is_halved,
    lost,
    lost_at_end,
)
from ampsim.runs.findings.finding import Finding, number_text, table
from ampsim.runs.read.history import NAMELESS, Series

TOLD_AT_END = ("loss", "scale", "rate", "other")
"""Roles of numbers of which no healthy run ends with NaN or inf."""
FEW = 3
"""Records below which there is no verdict."""


def doubts(run: Evidence, findings: list[Finding]) -> Iterator[str]:
    """Yield why a log is not enough to call its run healthy.

    Args:
        run: The run.
        findings: What `find` found in it; none is a problem.
    """
    skipped, steps = run.skip_share
    few_skips = run.counts_exactly and steps >= 20 and skipped <= 0.05 * steps
    if run.record_count < FEW and not few_skips:
        yield f"it has fewer than {FEW} records"
    yield from _alarms(run)
    if run.skips and not few_skips and not _goes_on(run):
        yield "it ends with skipped steps"
    if _often_skipped(run):
        yield "steps are skipped often up to its end"
    if run.loss:
        yield from _doubts_of_loss(run.loss)
    rows = [table().get(finding.id, {}) for finding in findings]
    yield from (row["doubt"] for row in rows if "doubt" in row)
    if not few_skips and not _steps_were_taken(run):
        yield "no line shows that an optimizer step was taken"
    yield from _doubts_of_norm(run)
    yield from _doubts_of_scale(run)


def _alarms(run: Evidence) -> Iterator[str]:
    """Yield words and numbers of trouble that no finding is about."""
    known = {line for line, _, _ in run.history.errors}
    shown = [*run.losses, *run.scales, *run.evaluations]
    begin = min((int(series.lines[0]) for series in shown), default=0)
    for alarm in run.kind("alarm"):
        if alarm.line >= begin and alarm.line not in known:  # before it are settings
            yield f"line {alarm.line} reports trouble ({alarm.text[:90]})"
    shown = [each for each in run.history.series if each.role in TOLD_AT_END]
    for series in shown:
        last = int(series.lines[-1])
        is_result = "loss" in series.name and last > run.end
        lasts = lost_at_end(series) > 1 and last >= 0.8 * run.end
        if series.name != NAMELESS and lost_at_end(series) and (is_result or lasts):
            yield f"the {series.label} is not finite at the end"
    for series in run.troubles:
        if (series.finite > 0).any():
            yield f"the {series.label} is {number_text(series.finite.max())}"


def _doubts_of_loss(loss: Series) -> Iterator[str]:
    finite = loss.finite
    if lost_at_end(loss):
        yield "its last loss is not finite"
    if loss.values[-1] == 0:
        yield "the last loss is printed as 0"
    if len(finite) >= FEW and not np.ptp(finite):
        yield "the loss does not change in it"
    if len(finite) and finite.min() > 0 and np.median(finite[-3:]) > 1.2 * finite[0]:
        yield "the loss is higher at its end than at its start"


def _doubts_of_norm(run: Evidence) -> Iterator[str]:
    norm, scale = run.norm, run.scale
    if lost_at_end(norm):
        yield "its last gradient norm is not finite"
    # A mean over many steps is not finite if one of them overflows.
    is_mean = scale and not is_halved(scale.values)
    for series in [*run.evaluations, *([] if is_mean else [norm])]:
        late = lost(series.values[len(series) // 2 :])
        if late.sum() > len(late) / 4:
            yield f"the {series.label} is often not finite"
    early, last = norm.finite[: len(norm.finite) // 2], norm.finite[-3:]
    if len(early) >= 3 and np.median(last) > 1000 * np.median(early) > 0:
        yield "the gradient norm rose a thousandfold"
    if len(norm.finite) >= 10 and not np.ptp(norm.values[-8:]):
        yield "the gradient norm stands still, as if no new one was computed"


def _doubts_of_scale(run: Evidence) -> Iterator[str]:
    scale = run.scale
    if not scale:
        if run.kind("off") and not run.losses:
            yield "the program reports that fp16 is off, so there is no loss scale to check"
        return
    ends_skipped = bool(run.skips) and run.finite_losses_after(run.skips[-1].line) < FEW
    end, lowest, highest = scale.values[-1], scale.finite.min(), scale.finite.max()
    if end <= 1 < highest:
        yield f"the loss scale fell to {number_text(end)}"
    elif lowest < 1 < highest:
        yield f"the loss scale fell to {number_text(lowest)} in between"
    if end <= 1 and ends_skipped:
        yield "steps overflow at a loss scale of 1"
    if _falls_often(scale):
        yield "the loss scale falls between many of its records"


def _steps_were_taken(run: Evidence) -> bool:
    """Return whether the log shows that steps were taken; a loss alone has to fall clearly.

    A scaler skips each step whose norm is not finite, and its scale grows after finite steps only.
    """
    has_norms = len(run.norm) >= 6
    is_long = not run.loss or len(run.loss) >= 8  # a shorter one may stay
    scales = run.scale.values
    # A number that is cut, such as 6.9 of 6.9e-18, is no rise.
    risen = scales[1:][np.diff(scales) > 0]
    if is_halved(risen) or (is_long and has_norms):
        return True
    has_scale = bool((scales > 1).any())  # 1 and 0 are of a scaler that is off
    if (has_norms or has_scale) and any(falls(loss.finite) for loss in run.losses):
        return True
    return any(map(_falls_clearly, [*run.losses, *run.evaluations]))


def _falls_clearly(loss: Series) -> bool:
    """Return whether a loss alone shows training: it is finite, and it falls far or surely."""
    values = loss.values
    surely = len(values) >= 8 or bool((np.diff(values) < 0).all())
    return falls(values) >= (0.02 if surely else 0.25)


def _often_skipped(run: Evidence) -> bool:
    """Return whether more than 8 % of the steps of the second half were skipped.

    A search for a first scale is over by then, and no usual growth interval is as short.
    """
    records = max([*run.losses, *run.scales, NOTHING], key=len)
    steps = records.steps[records.lines > run.end / 2]
    skipped = sum(skip.count for skip in run.skips if skip.line > run.end / 2)
    return (
        len(steps) > 1 and skipped >= 3 and skipped > 0.08 * (steps[-1] - steps[0] + 1)
    )


def _goes_on(run: Evidence) -> bool:
    """Return whether records follow the last skip."""
    records = [*run.losses, run.norm]
    return any((each.lines > run.skips[-1].line).any() for each in records)


def _falls_often(scale: Series) -> bool:
    """Return whether a scale falls on over an eighth of the later records, which hide more skips.

    Records that are many steps apart show the fall and the rise of each growth interval.
    """
    late = scale.part(slice(len(scale) // 2, None))
    moves = np.diff(late.values)
    is_far_apart = late.steps[-1] - late.steps[0] >= 500 * len(moves)
    often = (moves > 0).sum() >= 2 and (moves < 0).sum() > len(moves) / 8
    is_one = scale.name != MESSAGES and is_halved(late.values)
    return bool(often) and is_one and not is_far_apart
