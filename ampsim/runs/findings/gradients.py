"""Findings about gradients, their norms, and numbers that carry the loss scale."""

import math

import numpy as np

from ampsim.runs.findings.evidence import Evidence, falls, is_halved, lost_at_end
from ampsim.runs.findings.finding import Finding, at
from ampsim.runs.read.history import Series


def norm_not_finite(run: Evidence) -> Finding | None:
    """The gradient norm is NaN or infinite up to the end of the log."""
    norm, count = run.norm, lost_at_end(run.norm)
    if (
        norm is None
        or not count
        or (run.scale is not None and not is_halved(run.scale.values))
    ):
        return None  # a scale that is no power of two is a mean, and one step makes a mean infinite
    row = len(norm) - count
    # A scaler that searches its first scale has infinite norms, too.
    is_infinite = bool(np.isinf(norm.values[row:]).mean() > 0.5)
    enough = 16 if is_infinite else 4 if row == 0 else 3
    late = [scale.between(norm.lines[row], run.end + 1).values for scale in run.scales]
    rises = any((np.diff(scale) > 0).any() for scale in late)
    evaluation_lost = any(map(lost_at_end, run.evaluations))
    if (count < enough and not evaluation_lost) or rises:
        return None
    # One infinite step makes a mean infinite, and a loss that falls shows that steps are taken.
    is_mean = bool(np.isinf(norm.values[row:]).all()) and not evaluation_lost
    losses = run.loss.finite[-count:] if run.loss is not None else np.array([])
    severity = "warning" if is_mean and falls(losses) > 0.05 else "problem"
    return at(norm, row, "norm-not-finite", severity=severity)


def norm_zero(run: Evidence) -> Finding | None:
    """The gradient norm is 0 up to the end of the log."""
    norm, scale = run.norm, run.scale
    if norm is None or len(norm) < 5 or norm.values[-5:].any():  # NaN is no zero
        return None
    if scale is not None and not scale.values.any():
        return None  # a scaler that is off
    loss = run.loss.finite if run.loss is not None else np.array([])
    moves = len(loss) >= 3 and float(np.ptp(loss)) > 0.01 * abs(float(np.median(loss)))
    zeros = int((norm.values == 0).sum())
    identifier = (
        "norm-underflows"
        if scale is not None and scale.values[-1] <= 16
        else "norm-zero"
    )
    return at(
        norm, 0, identifier, severity="warning" if moves else "problem", records=zeros
    )


def carries_scale(run: Evidence) -> Finding | None:
    """A norm or a loss moves with the loss scale, or against it."""
    pairs = [
        (each, scale) for each in (run.norm, run.loss) if each for scale in run.scales
    ]
    for series, scale in pairs:
        slope = _slope(scale, series)
        if slope > 0:
            return at(series, 0, f"scaled-{series.role}")
        if slope < 0:
            return at(series, 0, "clip-of-scaled-gradients")
    return None


def _slope(scale: Series, series: Series) -> int:
    """Return 1 if a series jumps with the scale, -1 if against it, else 0."""
    _, rows, others = np.intersect1d(scale.lines, series.lines, return_indices=True)
    scales, values = scale.values[rows], series.values[others]
    usable = (scales > 0) & np.isfinite(scales) & (values > 0) & np.isfinite(values)
    logs, levels = np.log2(scales[usable]), np.log2(values[usable])
    moves, jumps = np.diff(logs), np.diff(levels)
    changes = int((moves != 0).sum())
    if len(logs) < 12 or not changes or changes == len(moves):
        return 0
    slope = float((moves * jumps).sum() / (moves**2).sum())
    noise = float(np.median(np.abs(jumps[moves == 0])))
    residual = levels - round(slope) * logs
    spread, reach = (
        float(np.median(np.abs(residual - np.median(residual)))),
        float(np.ptp(logs)),
    )
    noisy = 4 * noise > math.sqrt(changes) or 3 * max(spread, 0.05) > reach
    # One or two changes are enough only if the series hardly moves otherwise.
    too_few = changes < 3 and (spread > 0.05 * reach or len(logs) < 40)
    is_one = abs(abs(slope) - 1) <= 0.3 and (slope > 0 or spread <= 0.1)
    return round(slope) if is_one and not (noisy or too_few) else 0
