"""Findings about gradient norms, and about numbers that carry the loss scale."""

import math

import numpy as np

from ampsim.runs.findings.evidence import Evidence, falls, is_halved, lost_at_end
from ampsim.runs.findings.finding import Finding, at, number_text
from ampsim.runs.findings.loss import loss_falls_clearly
from ampsim.runs.read.history import Floats, Series


def norm_not_finite(run: Evidence) -> Finding | None:
    """The gradient norm is NaN or infinite up to the end of the log."""
    norm, count = run.norm, lost_at_end(run.norm)
    if norm is None or not count or (run.scale is not None and not is_halved(run.scale.values)):
        return None  # a scale that is no power of two is a mean: of means over many steps, one step is enough
    row = len(norm) - count
    # A scaler that searches its first scale has infinite norms, too.
    enough = 16 if np.isinf(norm.values[row:]).sum() > 0.5 * count else 4 if row == 0 else 3
    enough = 2 if run.scale is not None and (run.scale.values == 1.0).all() else enough
    evaluation_lost = any(map(lost_at_end, run.evaluations))
    grows = any(event.after > event.before for event in run.events[-3:])
    rises = any(
        ((np.diff(scale.values) > 0) & (scale.lines[1:] > norm.lines[row])).any()
        for scale in run.scales
    )
    if (count < enough and not evaluation_lost) or grows or rises:
        return None
    also = ", and the evaluation loss is not finite" if evaluation_lost else ""
    message = (
        f"The {norm.name} is not finite from {norm.place(row)} to the end ({count} records){also}."
    )
    # One infinite step makes a mean over many steps infinite, and a loss that falls shows that steps are taken.
    is_mean = bool(np.isinf(norm.values[row:]).all()) and not evaluation_lost
    late = run.loss.finite[-count:] if run.loss is not None else np.array([])
    severity = "warning" if is_mean and falls(late) > 0.05 else "problem"
    return at(norm, row, "norm-not-finite", severity, "likely", message, records=count)


def norm_zero(run: Evidence) -> Finding | None:
    """The gradient norm is 0 up to the end of the log."""
    norm, scale = run.norm, run.scale
    if norm is None or len(norm) < 5 or np.nan_to_num(norm.values[-5:]).any():
        return None
    if scale is not None and not scale.values.any():
        return None  # a scaler that is off
    loss = run.loss.finite if run.loss is not None else np.array([])
    still = len(loss) < 3 or float(np.ptp(loss)) <= 0.01 * abs(float(np.median(loss)))
    zeros, low = int((norm.values == 0).sum()), scale is not None and scale.values[-1] <= 16
    message = f"The {norm.name} is 0 on {zeros} of {len(norm)} records, up to the end."
    identifier = "norm-underflows" if low else "norm-zero"
    return at(
        norm, 0, identifier, "problem" if still else "warning", "likely", message, records=zeros
    )


def carries_scale(run: Evidence) -> Finding | None:
    """A norm or a loss moves with the loss scale, or against it."""
    for series in (each for each in (run.norm, run.loss) if each is not None):
        for scale in run.scales:
            if finding := _moves_with(scale, series) or _clipped_scaled(scale, series):
                return finding
    return None


def _moves_with(scale: Series, series: Series) -> Finding | None:
    """Compare the jumps of a series with those of the scale, where the scale changes."""
    scales, values = _on_same_lines(scale, series)
    usable = (scales > 0) & np.isfinite(scales) & (values > 0) & np.isfinite(values)
    logs, levels = np.log2(scales[usable]), np.log2(values[usable])
    moves, jumps = np.diff(logs), np.diff(levels)
    changes = int((moves != 0).sum())
    if len(logs) < 12 or not changes or changes == len(moves):
        return None
    slope = float((moves * jumps).sum() / (moves**2).sum())
    noise = float(np.median(np.abs(jumps[moves == 0])))
    residual = levels - round(slope) * logs
    spread, reach = float(np.median(np.abs(residual - np.median(residual)))), float(np.ptp(logs))
    noisy = 4 * noise > math.sqrt(changes) or 3 * max(spread, 0.05) > reach
    # One or two changes are enough only if the series hardly moves otherwise.
    too_few = changes < 3 and (spread > 0.05 * reach or len(logs) < 40)
    if abs(abs(slope) - 1) > 0.3 or noisy or too_few:
        return None
    if slope < 0:
        return _clip(series) if spread <= 0.1 else None
    is_norm = series.role == "norm"
    message = (
        f"The {series.name} moves with the loss scale over {changes} of its changes: it is "
        "printed while it is multiplied by "
        "the scale."
    )
    identifier, severity = ("scaled-norm", "problem") if is_norm else ("scaled-loss", "warning")
    return at(
        series, 0, identifier, severity, "likely", message, slope=round(slope, 2), changes=changes
    )


def _clipped_scaled(scale: Series, series: Series) -> Finding | None:
    """Find a clip at a scale that does not change: each norm is a usual max_norm divided by the scale."""
    scales, values = _on_same_lines(scale, series)
    if (
        series.role != "norm"
        or len(values) < 40
        or scales.min() < 1024
        or (scales != scales[0]).any()
    ):
        return None
    products = values[np.isfinite(values)] * scales[0]
    typical = float(np.median(products)) if len(products) else 0.0
    same = float(np.mean(np.abs(products - typical) <= 0.02 * typical)) if typical > 0 else 0.0
    usual = any(
        abs(typical - bound) <= 0.02 * bound for bound in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
    )
    return _clip(series) if same >= 0.9 and usual else None


def _on_same_lines(scale: Series, series: Series) -> tuple[Floats, Floats]:
    """Return the numbers of two series that stand on the same lines."""
    _, rows, others = np.intersect1d(scale.lines, series.lines, return_indices=True)
    return scale.values[rows], series.values[others]


def _clip(series: Series) -> Finding:
    message = (
        f"The {series.name} times the loss scale is constant: gradients are clipped while they "
        "are multiplied by the scale."
    )
    return at(series, 0, "clip-of-scaled-gradients", "problem", "likely", message)


def norm_looks_scaled(run: Evidence) -> Finding | None:
    """Gradient norms of about the size of a loss scale, beside a loss that does not fall."""
    norm = run.norm
    if norm is None or run.scales or len(norm.finite) < 10 or loss_falls_clearly(run):
        return None
    typical = float(np.median(norm.finite))
    if typical < 30_000 or (run.loss is not None and falls(run.loss.finite)):
        return None
    message = (
        f"The median {norm.name} is {number_text(typical)}, about the size of a loss scale, and "
        "the loss does not fall."
    )
    return at(norm, 0, "norm-looks-scaled", "warning", "likely", message, median=typical)
