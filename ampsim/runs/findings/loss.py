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
from ampsim.runs.read.names import role_of

_ADVERSARIAL = re.compile(r"gen|disc|adv|gan\b|^[gd][_ ]")
"""Losses of networks that train against each other rise and fall."""


def loss_not_finite(run: Evidence) -> Finding | None:
    """The loss is NaN or infinite up to the end of the log."""
    return first(lambda loss: _lost_loss(run, loss), run.losses)


def _lost_loss(run: Evidence, loss: Series) -> Finding | None:
    count, total = lost_at_end(loss), len(loss)
    if not count or (count == 1 and total > 5):
        return None
    kind, row = number_text(loss.values[-1]), total - count
    if not row:
        if _is_running_mean(run, loss):
            return None
        what = "its only record" if total == 1 else f"all {total} records"
        message = f"The {loss.name} is {kind} on {what}: it was never finite."
        return at(loss, 0, "loss-never-finite", "problem", "proved", message, records=total)
    before = float(np.median(loss.values[:row][np.isfinite(loss.values[:row])][-5:]))
    where = (
        f"from {loss.place(row)} to the end ({count} records)"
        if count > 1
        else f"at {loss.place(row)}, the last record"
    )
    message = (
        f"The {loss.name} is {kind} {where}; before that, it was "
        f"{number_text(before)}.{_what_came_first(run, loss, row)}"
    )
    return at(
        loss, row, "loss-not-finite", "problem", "proved", message, records=count, before=before
    )


def _is_running_mean(run: Evidence, loss: Series) -> bool:
    """Return whether another training loss is finite on the lines where a loss is NaN."""
    others = [each for each in run.losses if "train" in each.name and len(each.finite) == len(each)]
    return any(bool(np.isin(loss.lines, each.lines).all()) for each in others)


def _what_came_first(run: Evidence, loss: Series, row: int) -> str:
    """Return in words whether the scale fell before the loss was lost or after; "" if the log does not show it."""
    scale = run.scale
    if scale is None:
        return ""
    start = last_descent(scale)
    top, end = float(scale.values[start]), float(scale.values[-1])
    early = scale.values[scale.lines < loss.lines[row]]
    if len(early) and halvings(top, early[-1]) >= 4 and scale.lines[start] < loss.lines[row]:
        return (
            f" The loss scale had fallen to {number_text(early[-1])} before that: the gradients "
            "overflowed first."
        )
    fell = (halvings(top, end) >= 2 or end == 0) and scale.lines[-1] > loss.lines[row]
    return (
        f" The loss scale fell from {number_text(top)} to {number_text(end)} after that, as a "
        "consequence."
        if fell
        else ""
    )


def loss_sometimes_not_finite(run: Evidence) -> Finding | None:
    """The loss is NaN or infinite on some records and finite afterwards."""
    for loss in run.losses:
        rows, at_end = np.flatnonzero(lost(loss.values)), lost_at_end(loss)
        if not len(rows) or at_end > 1 or len(rows) == len(loss):
            continue
        # One infinite step makes the mean of an epoch infinite; a NaN that returns is no accident.
        nans = np.flatnonzero(np.isnan(loss.values))
        recurs = len(nans) >= max(3, 0.1 * len(loss)) and nans[-1] >= 0.9 * len(loss) - 1
        after = "the last record is one of them" if at_end else "it is finite again afterwards"
        message = (
            f"The {loss.name} is not finite on {len(rows)} of {len(loss)} records, first at "
            f"{loss.place(rows[0])}; {after}."
        )
        severity, level = ("problem", "likely") if recurs else ("warning", "proved")
        part, identifier = loss.part(rows), "loss-sometimes-not-finite"
        return at(part, 0, identifier, severity, level, message, records=len(rows))
    return None


def loss_zero_hides_nan(run: Evidence) -> Finding | None:
    """The loss is printed as exactly 0 where it was NaN, as transformers' Trainer does."""
    return first(lambda loss: _zero_loss(run, loss), run.losses)


def _zero_loss(run: Evidence, loss: Series) -> Finding | None:
    zeros = equal_at_end(loss.values, 0.0)
    row = len(loss) - zeros
    before, recent = loss.values[:row], np.abs(loss.values[:row][-5:])
    norm_lost = lost_at_end(run.norm) > 0
    evaluation_lost = any(map(lost_at_end, run.evaluations))
    beside = (
        norm_lost
        and run.norm is not None
        and bool(np.isin(run.norm.lines[lost(run.norm.values)], loss.lines[row:]).any())
    )
    # A loss falls to 0 through smaller numbers; the 0 of a lost loss comes at once.
    leap = (
        bool(run.rates)
        and len(recent) > 0
        and bool((recent > 0.5).all())
        and (zeros > 1 or recent[-1] > 1000)
    )
    if not zeros or not (norm_lost or evaluation_lost or leap or lost(before).any()):
        return None
    if zeros == 1 and len(loss) > 5 and not (beside or leap):
        return None
    lost_too = ["the gradient norm"] * norm_lost + ["the evaluation loss"] * evaluation_lost
    also = (
        f", while {' and '.join(lost_too)} {'are' if len(lost_too) > 1 else 'is'} not finite"
        if lost_too
        else ""
    )
    message = (
        f"The {loss.name} is exactly 0 from {loss.place(row)} on ({zeros} records){also}. "
        "The transformers Trainer prints 0.0 if the loss was NaN."
    )
    return at(loss, row, "loss-zero-hides-nan", "problem", "likely", message, records=zeros)


def loss_diverged(run: Evidence) -> Finding | None:
    """The loss rose far above its lowest level and stayed there."""
    loss = run.loss
    start = run.history.last_start
    if loss is not None and start:  # a new start begins high
        if role_of(loss.name) == "mean loss":
            return None  # a few numbers for each start
        loss = loss.part(loss.lines >= start) if (loss.lines >= start).sum() >= 12 else loss
    if (
        loss is None
        or len(loss.finite) < 4
        or loss.finite.min() <= 0
        or _ADVERSARIAL.search(loss.name)
    ):
        return None
    values = loss.finite
    if len(values) < 6:
        risen = values[-2:].min() > 100 * values[:-2].min()
        return (
            _rise(loss, len(loss) - 2, "loss-diverged", values[-3], values[-1]) if risen else None
        )
    few = len(values) < 12
    values = np.repeat(values, 3) if few else values
    part = max(3, len(values) // 20)
    starts = range(0, len(values) - part + 1, part)
    levels = [float(np.median(values[start : start + part])) for start in starts]
    tail, best, begin = float(np.median(values[-part:])), min(levels), levels[0]
    steady = (
        len(values) >= 20
        and not few
        and float(np.corrcoef(np.arange(len(levels)), levels)[0, 1]) > 0.9
    )
    high = (
        tail > 2 * best
        and all(level > 1.5 * best for level in levels[-2:])
        and (not few or tail > 2.2 * begin)
    )
    if not high and not (steady and tail > 1.5 * max(best, begin)):
        return None
    low = np.flatnonzero(loss.values <= best * 1.05)
    row = int(low[-1]) if len(low) else 0
    return _rise(loss, row, "loss-diverged" if tail > 1.2 * begin else "loss-rose", best, tail)


def _rise(loss: Series, row: int, identifier: str, best: float, tail: float) -> Finding:
    message = (
        f"The {loss.name} rose from {number_text(best)} to {number_text(tail)} after "
        f"{loss.place(row)}."
    )
    severity = "problem" if identifier == "loss-diverged" else "warning"
    return at(
        loss, row, identifier, severity, "likely", message, lowest=float(best), last=float(tail)
    )


def loss_spike(run: Evidence) -> Finding | None:
    """The loss rose tenfold for a few records and came back."""
    loss = run.loss
    if (
        loss is None
        or len(loss.finite) < 10
        or loss.finite.min() <= 0
        or _ADVERSARIAL.search(loss.name)
    ):
        return None
    usual = float(np.median(loss.finite))
    rows = np.flatnonzero(loss.values > 10 * usual)
    rows = rows[rows > len(loss) // 10]  # a loss is high in the first steps
    if not len(rows) or len(rows) > 0.1 * len(loss) or rows[-1] == len(loss) - 1:
        return None
    message = (
        f"The {loss.name} rose to {number_text(loss.values[rows].max())} at "
        f"{loss.place(int(rows[0]))}, "
        f"from about {number_text(usual)}, and came back."
    )
    return at(loss, int(rows[0]), "loss-spike", "info", "likely", message, records=len(rows))


def loss_flat(run: Evidence) -> Finding | None:
    """The loss does not fall, which happens if no step changes the parameters."""
    loss = run.loss
    if loss is None or len(loss.finite) < 20:
        return None
    values, third = loss.finite, len(loss.finite) // 3
    if (values[-20:] == values[-1]).all() and values[-1] != 0:
        message = f"The {loss.name} is exactly {number_text(values[-1])} on the last 20 records."
        return at(
            loss,
            len(loss) - 20,
            "loss-constant",
            "warning",
            "proved",
            message,
            loss=float(values[-1]),
        )
    begin, end = float(np.median(values[:third])), float(np.median(values[-third:]))
    noise = float(np.median(np.abs(values[:third] - begin)))
    if values.min() <= 0 or abs(end - begin) > max(noise, 0.01 * abs(begin)) or end <= 0.97 * begin:
        return None
    message = (
        f"The {loss.name} does not fall: its median is {number_text(begin)} in the first third "
        "of the log and "
        f"{number_text(end)} in the last third."
    )
    return at(loss, 0, "loss-flat", "warning", "likely", message, first=begin, last=end)


def evaluation_not_finite(run: Evidence) -> Finding | None:
    """The evaluation loss is NaN or infinite at the end of the log."""
    for series in run.evaluations:
        if count := lost_at_end(series):
            training_lost = run.loss is not None and (
                lost_at_end(run.loss) or lost_at_end(run.norm) or run.loss.values[-1] == 0
            )
            row = len(series) - count
            message = (
                f"The {series.name} is not finite from {series.place(row)} to the end ({count} "
                f"of {len(series)} records)."
            )
            severity = "problem" if training_lost else "warning"
            return at(
                series, row, "evaluation-not-finite", severity, "likely", message, records=count
            )
    return None


def nan_iterations(run: Evidence) -> Finding | None:
    """The log counts iterations whose loss was NaN, up to its end."""
    for counter in run.nan_counters:
        rows = np.flatnonzero(counter.values > 0)
        if (
            len(rows) >= 3
            and rows[-1] >= len(counter) - 3
            and len(rows) >= 0.5 * (len(counter) - rows[0])
        ):
            message = (
                f"The log counts iterations with a NaN loss from {counter.place(rows[0])} to the "
                f"end ({len(rows)} records)."
            )
            return at(
                counter,
                int(rows[0]),
                "loss-not-finite",
                "problem",
                "proved",
                message,
                records=len(rows),
            )
    return None


def loss_falls_clearly(run: Evidence) -> bool:
    """Return whether the training loss fell by more than 5 %."""
    return run.loss is not None and falls(run.loss.finite) > 0.05
