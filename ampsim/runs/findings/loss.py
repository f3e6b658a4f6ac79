"""Findings about the training loss and the evaluation loss."""

import re

import numpy as np

from ampsim.runs.findings.evidence import (
    Evidence,
    equal_at_end,
    falls,
    halvings,
    last_descent,
    lost,
    lost_at_end,
)
from ampsim.runs.findings.finding import Finding, at, first, number_text
from ampsim.runs.read.history import Series

_ADVERSARIAL = re.compile(r"gen|disc|adv|gan\b|^[gd][_ ]")
"""Losses of networks that train against each other rise and fall."""


def loss_not_finite(run: Evidence) -> Finding | None:
    """The loss is NaN or infinite up to the end of the log."""
    return first(lambda loss: _lost_loss(run, loss), run.losses)


def _lost_loss(run: Evidence, loss: Series) -> Finding | None:
    row, total = _onset(loss), len(loss)
    if total - row <= (total > 5):
        return None
    gone = loss.part(row + np.flatnonzero(lost(loss.values[row:])))
    fields = {"kind": number_text(loss.values[-1]), "total": total}
    if not row and total > 1:  # one record tells nothing of earlier steps
        return (
            None
            if _is_running_mean(run, loss)
            else at(gone, 0, "loss-never-finite", **fields)
        )
    fields["level"] = "proved" if len(gone) == total - row else ""
    fields["before"], fields["restart"] = _before(loss, row) if row else ("", "it")
    return at(
        gone, 0, "loss-not-finite", order=_what_came_first(run, loss, row), **fields
    )


def _before(loss: Series, row: int) -> tuple[str, str]:
    """Return in words what a loss was before a row, and where it began to rise; that row if it did
    not double.
    """
    values, place = loss.values[:row], loss.place(row)
    words, level = (
        f"; before that, it was {number_text(values[-1])}",
        np.nanmedian(values[row // 2 :]),
    )
    if row >= 8 and values[-1] > 2 * level > 0:
        start = int(np.flatnonzero(values <= 1.2 * level)[-1])
        place = loss.place(start)
        words += f", risen from {number_text(values[start])} at {place}"
    return words, place


def _onset(loss: Series) -> int:
    """Return the row from which a loss is lost to the end, but for few numbers among many lost
    ones.
    """
    starts = np.flatnonzero(np.append(True, ~lost(loss.values)))
    gaps = np.diff(starts, append=len(loss) + 1) - 1
    # Many are ten times as many as the finite numbers that come later.
    later = np.arange(len(starts))[::-1]
    return int(starts[np.argmax(gaps > 10 * later)]) if gaps[-1] else len(loss)


def _is_running_mean(run: Evidence, loss: Series) -> bool:
    """Return whether another training loss is finite on the lines where a loss is NaN."""
    others = [
        each
        for each in run.losses
        if "train" in each.name and len(each.finite) == len(each)
    ]
    return any(bool(np.isin(loss.lines, each.lines).all()) for each in others)


def _what_came_first(run: Evidence, loss: Series, row: int) -> str:
    """Return in words whether the scale fell before the loss was lost or after; "" if unknown."""
    scale = run.scale
    if scale is None:
        return ""
    start = last_descent(scale)
    top, end = float(scale.values[start]), float(scale.values[-1])
    early = scale.values[scale.lines < loss.lines[row]]
    if (
        len(early)
        and halvings(top, early[-1]) >= 4
        and scale.lines[start] < loss.lines[row]
    ):
        fallen = number_text(early[-1])
        return f" The loss scale had fallen to {fallen} before that: the gradients overflowed first."
    if scale.lines[-1] > loss.lines[row] and (halvings(top, end) >= 2 or end == 0):
        change = f"from {number_text(top)} to {number_text(end)}"
        return f" The loss scale fell {change} after that, as a consequence."
    return ""


def loss_sometimes_not_finite(run: Evidence) -> Finding | None:
    """The loss is NaN or infinite on some records and finite afterwards."""
    return first(_sometimes_lost, run.losses)


def _sometimes_lost(loss: Series) -> Finding | None:
    rows, total = np.flatnonzero(lost(loss.values)), len(loss)
    if not len(rows) or lost_at_end(loss) > 1 or len(rows) == total:
        return None
    # One infinite step makes the mean of an epoch infinite. A NaN that returns is no accident, and
    # after one that stays for many records, parameters are NaN: what is finite later is a new
    # start.
    nans = np.flatnonzero(np.isnan(loss.values))
    runs = np.split(nans, np.flatnonzero(np.diff(nans) > 1) + 1)
    returns = len(nans) >= max(3, 0.1 * total) and nans[-1] >= 0.9 * total - 1
    recurs = returns or max(map(len, runs)) >= 5 or len(nans) >= max(2, 0.5 * total)
    options = {"severity": "problem", "level": "likely"} if recurs else {}
    return at(loss.part(rows), 0, "loss-sometimes-not-finite", total=total, **options)


def loss_zero_hides_nan(run: Evidence) -> Finding | None:
    """The loss is printed as exactly 0 where it was NaN, as transformers' Trainer does."""
    return first(lambda loss: _zero_loss(run, loss), run.losses)


def _zero_loss(run: Evidence, loss: Series) -> Finding | None:
    count = equal_at_end(loss.values, 0)
    row = len(loss) - count
    recent = np.abs(loss.values[:row][-5:])
    norm_lost, evaluation_lost = (
        lost_at_end(run.norm),
        any(map(lost_at_end, run.evaluations)),
    )
    # A loss falls to 0 through smaller numbers; the 0 of a lost loss comes at once.
    leaps = bool(run.rates) and len(recent) > 0 and bool((recent > 0.5).all())
    leaps = leaps and (count > 1 or recent[-1] > 1000)
    lost_too = norm_lost or evaluation_lost or lost(loss.values[:row]).any()
    if not count or not (lost_too or leaps):
        return None
    if count == 1 and len(loss) > 5 and not (leaps or norm_lost):
        return None
    return at(loss, row, "loss-zero-hides-nan")


def loss_diverged(run: Evidence) -> Finding | None:
    """The loss rose far above its lowest level and stayed there."""
    loss = run.loss
    if loss is None or len(loss.finite) < 4 or _ADVERSARIAL.search(loss.name):
        return None
    values = loss.finite
    if len(values) < 6 or values.min() <= 0:
        part = max(2, len(values) // 20)
        begin, tail = np.abs(values[:part]).max(), np.abs(values[-part:]).min()
        far = tail > (100 if values.min() > 0 else 1e4) * max(begin, 1.0)
        if not far:
            return None
        return at(
            loss, part, "loss-diverged", lowest=float(begin), last=float(values[-1])
        )
    part = max(2, len(values) // 10)
    starts = range(0, len(values) - part + 1, part)
    levels = [float(np.median(values[start : start + part])) for start in starts]
    tail, best, begin = float(np.median(values[-part:])), min(levels), levels[0]
    if min(*levels[-2:], tail / 1.25) <= 2 * best or (
        len(values) < 12 and tail <= 2.2 * begin
    ):
        return None
    row = int(np.flatnonzero(loss.values <= best * 1.05)[-1])
    identifier = "loss-diverged" if tail > 1.2 * begin else "loss-rose"
    return at(loss, row, identifier, lowest=best, last=tail)


def loss_flat(run: Evidence) -> Finding | None:
    """The loss does not fall, which happens if no step changes the parameters."""
    loss = run.loss
    if loss is None or len(loss.finite) < 20:
        return None
    values, third = loss.finite, len(loss.finite) // 3
    if values[-1] and equal_at_end(values, values[-1]) >= 20:
        return at(loss, len(loss) - 20, "loss-constant", loss=float(values[-1]))
    begin, end = float(np.median(values[:third])), float(np.median(values[-third:]))
    noise = float(np.median(np.abs(values[:third] - begin)))
    moved = abs(end - begin) > max(noise, 0.01 * abs(begin))
    if values.min() <= 0 or moved or falls(values) > 0.05:
        return None
    return at(loss, 0, "loss-flat", begin=begin, end=end)


def evaluation_not_finite(run: Evidence) -> Finding | None:
    """The evaluation loss is NaN or infinite at the end of the log."""
    series = next(filter(lost_at_end, run.evaluations), None)
    if series is None:
        return None
    loss, count = run.loss, lost_at_end(series)
    row = len(series) - count
    also = loss is not None and (
        lost_at_end(loss) or lost_at_end(run.norm) or not loss.values[-1]
    )
    # Parameters that are NaN spoil each later evaluation. One that was never finite may be of
    # another kind, such as a mean of no batches.
    lasts = row > 0 and (count >= 3 or loss is None)
    severity = "problem" if also or lasts else "warning"
    return at(series, row, "evaluation-not-finite", severity=severity)
