"""Findings about gradients, their norms, and numbers that carry the loss scale."""

import math
from collections.abc import Iterator

import numpy as np

from ampsim.runs.findings.evidence import (
    Evidence,
    falls,
    lost_at_end,
    spread,
)
from ampsim.runs.findings.finding import Finding, at
from ampsim.runs.read.history import Floats, Series


def norm_not_finite(run: Evidence) -> Iterator[Finding]:
    """The gradient norm is NaN or infinite up to the end of the log."""
    norm, count = run.norm, lost_at_end(run.norm)
    if not count:
        return
    row = len(norm) - count
    infinite = np.isinf(norm.values[row:])
    evaluation_lost = any(map(lost_at_end, run.evaluations))
    # A scaler that searches its first scale has infinite norms, too.
    enough = 16 if infinite.mean() > 0.5 else 3
    if count < enough and not evaluation_lost:
        return
    # One infinite step makes a mean infinite, and a loss that falls shows that steps are taken.
    may_be_mean = bool(infinite.all()) and not evaluation_lost
    late_losses = run.loss.finite[-count:]
    is_harmless = may_be_mean and falls(late_losses) > 0.05
    severity = "warning" if is_harmless else "problem"
    yield at(norm, row, "norm-not-finite", severity=severity)


def norm_zero(run: Evidence) -> Iterator[Finding]:
    """The gradient norm is 0 up to the end of the log."""
    norm, scale, loss = run.norm, run.scale, run.loss.finite
    is_off = scale and not scale.values.any()
    ends_at_zero = len(norm) >= 5 and not norm.values[-5:].any()  # NaN is no zero
    if is_off or not ends_at_zero:
        return
    is_low = scale and scale.values[-1] <= 16
    identifier = "norm-underflows" if is_low else "norm-zero"
    moves = len(loss) >= 3 and np.ptp(loss) > 0.01 * abs(np.median(loss))
    severity = "warning" if moves else "problem"
    records = int((norm.values == 0).sum())
    yield at(norm, 0, identifier, severity=severity, records=records)


def carries_scale(run: Evidence) -> Iterator[Finding]:
    """A norm or a loss moves with the loss scale, or against it."""
    for series in filter(None, (run.norm, run.loss)):
        slopes = [_slope(scale, series) for scale in run.scales]
        for slope in filter(None, slopes):
            against = "clip-of-scaled-gradients"
            identifier = f"scaled-{series.role}" if slope > 0 else against
            yield at(series, 0, identifier)


def _slope(scale: Series, series: Series) -> int:
    """Return 1 if a series jumps with the scale, -1 if against it, else 0."""
    logs, levels = _common_logarithms(scale, series)
    moves, jumps = np.diff(logs), np.diff(levels)
    moved = moves != 0
    changes = int(moved.sum())
    if len(logs) < 12 or not changes or changes == len(moves):
        return 0
    slope = float((moves * jumps).sum() / (moves**2).sum())  # by least squares
    direction = round(slope)
    reach = float(np.ptp(logs))
    noise = float(np.median(np.abs(jumps[~moved])))
    off = spread(levels - direction * logs)
    if 4 * noise > math.sqrt(changes) or 3 * max(off, 0.05) > reach:
        return 0
    # One or two changes are enough only if the series hardly moves otherwise.
    if changes < 3 and (off > 0.05 * reach or len(logs) < 40):
        return 0
    is_one = abs(abs(slope) - 1) <= 0.3
    is_exact = slope > 0 or off <= 0.1  # clipping makes norms that are constant
    return direction if is_one and is_exact else 0


def _common_logarithms(scale: Series, series: Series) -> tuple[Floats, Floats]:
    """Return log2 of two series on the lines on which both are positive and finite."""
    _, rows, others = np.intersect1d(scale.lines, series.lines, return_indices=True)
    scales, values = scale.values[rows], series.values[others]
    usable = (scales > 0) & np.isfinite(scales) & (values > 0) & np.isfinite(values)
    return np.log2(scales[usable]), np.log2(values[usable])
