"""Findings about the training loss and the evaluation loss."""

import re
from collections.abc import Iterator

import numpy as np

from ampsim.runs.findings.evidence import (
    Evidence,
    equal_at_end,
    falls,
    halvings,
    last_descent,
    lost,
    lost_at_end,
    spread,
)
from ampsim.runs.findings.finding import Finding, at, make, number_text
from ampsim.runs.read.history import Floats, Series

_ADVERSARIAL = re.compile(r"gen|disc|adv|gan\b|^[gd][_ ]")
"""Losses of networks that train against each other rise and fall."""

_METRIC = re.compile(r"acc|(?:\b|_)m?ap\b|iou|recall|prec|(?:\b|_)f1|auc|dice|corr")
"""Metrics that are NaN for a class without a sample."""

TOO_LARGE = 2.0**64
"""A loss whose square float32 cannot hold."""


def loss_not_finite(run: Evidence) -> Iterator[Finding]:
    """The loss is NaN or infinite up to the end of the log."""
    last = _last_losses(run)
    for loss in [*run.losses, *last]:
        total, count = len(loss), lost_at_end(loss)
        row = total - count
        # One lost number at the end may be that of a skipped step.
        if count <= (total > 5 and loss not in last):
            continue
        kind = number_text(loss.values[-1])
        if not row and total > 1:  # one record tells nothing of earlier steps
            if not _is_running_mean(run, loss):
                yield at(loss, 0, "loss-never-finite", kind=kind)
            continue
        before, restart = _before(loss, row) if row else ("", "it")
        order = _what_came_first(run, loss, row)
        fields = {"kind": kind, "before": before, "restart": restart, "order": order}
        yield at(loss, row, "loss-not-finite", **fields)


def _last_losses(run: Evidence) -> list[Series]:
    """Return the training losses that are NaN after the last finite loss of any name.

    There are none if another loss does not confirm them, or if the log has a loss scaler.
    """
    shown = [*run.history.role("loss"), *run.evaluations]
    finite = [each.lines[~lost(each.values)].max(initial=0) for each in shown]
    end = max(finite, default=0)
    nan = [each for each in shown if each.lines[-1] > end and np.isnan(each.values[-1])]
    if len(nan) < 2 or run.scales or run.skips:
        return []
    return [each for each in nan if each.role == "loss"]


def _before(loss: Series, row: int) -> tuple[str, str]:
    """Return in words what a loss was before a row, and where it began to rise; that row if it did
    not double.
    """
    values, place = loss.values[:row], loss.place(row)
    level = float(np.nanmedian(values[row // 2 :]))
    words = f"; before that, it was {number_text(values[-1])}"
    if row >= 8 and values[-1] > 2 * level > 0:
        start = int(np.flatnonzero(values <= 1.2 * level)[-1])
        place = loss.place(start)
        words += f", risen from {number_text(values[start])} at {place}"
    return words, place


def _is_running_mean(run: Evidence, loss: Series) -> bool:
    """Return whether another training loss is finite on the lines where a loss is NaN."""
    return any(
        "train" in each.name
        and np.isin(loss.lines, each.lines[~lost(each.values)]).all()
        for each in run.losses
    )


def _what_came_first(run: Evidence, loss: Series, row: int) -> str:
    """Return in words whether the scale fell before the loss was lost or after; "" if unknown."""
    scale = run.scale
    if not row:
        return ""
    early = scale.values[scale.lines <= loss.lines[row - 1]]
    later = scale.values[scale.lines >= loss.lines[row]]
    if not len(early) or not len(later):
        return ""
    before, end = float(early[-1]), float(later[-1])
    top = float(scale.values[min(last_descent(scale), len(early) - 1)])
    # Between records that are many steps apart, either can come first.
    is_next_step = bool(np.diff(loss.known_steps[row - 1 : row + 1]) <= 1)
    if halvings(top, before) >= 4:
        first = ": the gradients overflowed first" if is_next_step else ""
        return (
            f" The loss scale had fallen to {number_text(before)} before that{first}."
        )
    if not (halvings(before, end) >= 2 or end == 0):
        return ""
    if is_next_step or later[0] >= before:
        change = f"from {number_text(before)} to {number_text(end)}"
        return f" The loss scale fell {change} after that, as a consequence."
    change = f"was {number_text(before)} before that and is {number_text(end)}"
    return f" The loss scale {change} at the end."


def all_not_finite(run: Evidence) -> Iterator[Finding]:
    """The log shows no loss but 0 and no scale, and numbers of any name are NaN up to its end."""
    shown = [*run.losses, *run.evaluations]
    others = [each for each in run.others if not _METRIC.search(each.name)]
    if run.scales or not others or any(each.values.any() for each in shown):
        return
    lines = sorted(set(np.concatenate([each.lines for each in others]).tolist()))
    if len(lines) >= 3 and 2 * lines[-1] > run.history.line_count:
        names = ", ".join(f"'{series.name}'" for series in others[:4])
        first = min(others, key=lambda series: series.lines[0])
        yield make(
            "values-not-finite",
            lines,
            first.known_steps[0],
            names=names,
            records=len(lines),
            place=first.place(0),
        )


def loss_sometimes_not_finite(run: Evidence) -> Iterator[Finding]:
    """The loss is NaN or infinite on some records and finite afterwards."""
    for loss in [*run.losses, *run.means]:
        rows, total = np.flatnonzero(lost(loss.values)), len(loss)
        if not 0 < len(rows) < total or lost_at_end(loss) > 1:
            continue
        # One infinite step makes the mean of an epoch infinite. A NaN that returns is no accident.
        # One NaN is in each mean over the last losses until it leaves them.
        share = 0.25 if loss in run.means else 0.01
        recurs = np.isnan(loss.values).sum() >= max(2, share * total)
        options = {"severity": "problem", "level": "likely"} if recurs else {}
        found = loss.part(rows)
        yield at(found, 0, "loss-sometimes-not-finite", total=total, **options)


def loss_zero_hides_nan(run: Evidence) -> Iterator[Finding]:
    """The loss is printed as exactly 0 where it was NaN, as transformers' Trainer does."""
    norm_lost = lost_at_end(run.norm)
    evaluation_lost = any(map(lost_at_end, run.evaluations))
    for loss in run.losses:
        count = equal_at_end(loss.values, 0)
        before = loss.values[: len(loss) - count]
        recent = np.abs(before[-5:])
        # A loss falls to 0 through smaller numbers; the 0 of a lost loss comes at once.
        is_sudden = len(recent) > 0 and bool(recent.min() > 0.5)
        leaps = bool(run.rates) and count > 1 and is_sudden
        is_lost = norm_lost or evaluation_lost or lost(before).any()
        if count and (is_lost or leaps):
            yield at(loss, len(before), "loss-zero-hides-nan")


def loss_leaped(run: Evidence) -> Iterator[Finding]:
    """The loss rose to a hundred times its first numbers or more, even if it fell again."""
    loss, size = run.loss, np.abs(run.loss.finite)
    if len(size) < 4 or _ADVERSARIAL.search(loss.name):
        return
    part = max(2, len(size) // 20)
    begin, end = float(size[:part].max()), float(np.median(size[-part:]))
    highest = float(size.max())
    # A loss that can be negative has no natural size.
    factor = 100 if loss.finite.min() > 0 else 1e4
    far = factor * max(begin, 1.0)
    fields = {"lowest": begin, "highest": highest, "last": end}
    if end > far and not any(loss_diverged(run)):
        last_usual = int(np.flatnonzero(np.abs(loss.values) <= begin)[-1])
        yield at(loss, last_usual, "loss-diverged", **fields)
    if highest > min(far, TOO_LARGE):
        row = int(np.flatnonzero(np.abs(loss.values) == highest)[0])
        severity = "problem" if end > 0.9 * begin else "warning"
        yield at(loss, row, "loss-leaped", severity=severity, **fields)


def loss_diverged(run: Evidence) -> Iterator[Finding]:
    """The loss rose far above its lowest level and stayed there."""
    loss, values = run.loss, run.loss.finite
    if len(values) < 6 or values.min() <= 0 or _ADVERSARIAL.search(loss.name):
        return
    part = max(2, len(values) // 10)
    starts = range(0, len(values) - part + 1, part)
    levels = [float(np.median(values[start : start + part])) for start in starts]
    begin, best = levels[0], min(levels)
    tail = float(np.median(values[-part:]))
    if min(levels[-2:]) > 2 * best:
        row = int(np.flatnonzero(loss.values <= best * 1.05)[-1])
        identifier = "loss-diverged" if tail > 1.2 * begin else "loss-rose"
        yield at(loss, row, identifier, lowest=best, last=tail)


def loss_flat(run: Evidence) -> Iterator[Finding]:
    """The loss does not fall, which happens if no step changes the parameters."""
    loss, values = run.loss, run.loss.finite
    if len(values) < 20:
        return
    if (
        values[-1]
        and equal_at_end(values, values[-1]) >= 20
        and not _is_rounded(values)
    ):
        yield at(loss, len(loss) - 20, "loss-constant", loss=float(values[-1]))
    third = len(values) // 3
    early, late = values[:third], values[-third:]
    begin, end = float(np.median(early)), float(np.median(late))
    moved = abs(end - begin) > max(spread(early), 0.01 * abs(begin))
    if values.min() > 0 and not moved and falls(values) <= 0.05:
        yield at(loss, 0, "loss-flat", begin=begin, end=end)


def _is_rounded(values: Floats) -> bool:
    """Return whether a loss falls, and is printed with so few digits that it often repeats."""
    changes = np.flatnonzero(np.diff(values)) + 1
    repeats = np.diff(changes, prepend=0)
    at_end = len(values) - int(changes[-1]) if len(changes) else len(values)
    return falls(values) > 0 and 2 * int(repeats.max(initial=0)) >= at_end


def evaluation_not_finite(run: Evidence) -> Iterator[Finding]:
    """The evaluation loss is NaN or infinite at the end of the log."""
    for series in filter(lost_at_end, run.evaluations):
        count = lost_at_end(series)
        row = len(series) - count
        # Parameters that are NaN spoil each later evaluation. One that was never finite may be of
        # another kind, such as a mean of no batches.
        lasts = row > 0 and (count >= 3 or not run.loss)
        severity = "problem" if lasts else "warning"
        yield at(series, row, "evaluation-not-finite", severity=severity)
