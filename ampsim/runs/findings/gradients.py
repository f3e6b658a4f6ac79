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
from ampsim.runs.read.history import Series


def norm_not_finite(run: Evidence) -> Iterator[Finding]:
    """The gradient norm is NaN or infinite up to the end of the log."""
    norm, count = run.norm, lost_at_end(run.norm)
    if not count:
        return
    row = len(norm) - count
    # A scaler that searches its first scale has infinite norms, too.
    infinite = np.isinf(norm.values[row:])
    enough = 16 if infinite.mean() > 0.5 else 3
    evaluation_lost = any(map(lost_at_end, run.evaluations))
    if count < enough and not evaluation_lost:
        return
    # One infinite step makes a mean infinite, and a loss that falls shows that steps are taken.
    is_mean = bool(infinite.all()) and not evaluation_lost
    is_harmless = is_mean and falls(run.loss.finite[-count:]) > 0.05
    severity = "warning" if is_harmless else "problem"
    yield at(norm, row, "norm-not-finite", severity=severity)


def norm_zero(run: Evidence) -> Iterator[Finding]:
    """The gradient norm is 0 up to the end of the log."""
    norm, scale, loss = run.norm, run.scale, run.loss.finite
    is_off = scale and not scale.values.any()
    if len(norm) < 5 or norm.values[-5:].any() or is_off:  # NaN is no zero
        return
    moves = len(loss) >= 3 and np.ptp(loss) > 0.01 * abs(np.median(loss))
    is_low = scale and scale.values[-1] <= 16
    identifier = "norm-underflows" if is_low else "norm-zero"
    severity = "warning" if moves else "problem"
    records = int((norm.values == 0).sum())
    yield at(norm, 0, identifier, severity=severity, records=records)


def carries_scale(run: Evidence) -> Iterator[Finding]:
    """A norm or a loss moves with the loss scale, or against it."""
    for series in filter(None, (run.norm, run.loss)):
        for scale in run.scales:
            slope = _slope(scale, series)
            if slope:
                against = "clip-of-scaled-gradients"
                identifier = f"scaled-{series.role}" if slope > 0 else against
                yield at(series, 0, identifier)


def _slope(scale: Series, series: Series) -> int:
    """Return 1 if a series jumps with the scale, -1 if against it, else 0."""
    _, rows, others = np.intersect1d(scale.lines, series.lines, return_indices=True)
    pair = np.array([scale.values[rows], series.values[others]])
    logs, levels = np.log2(pair[:, ((pair > 0) & np.isfinite(pair)).all(axis=0)])
    moves, jumps = np.diff(logs), np.diff(levels)
    changes = int((moves != 0).sum())
    if len(logs) < 12 or not changes or changes == len(moves):
        return 0
    slope = float((moves * jumps).sum() / (moves**2).sum())
    noise = float(np.median(np.abs(jumps[moves == 0])))
    off, reach = spread(levels - round(slope) * logs), float(np.ptp(logs))
    noisy = 4 * noise > math.sqrt(changes) or 3 * max(off, 0.05) > reach
    # One or two changes are enough only if the series hardly moves otherwise.
    too_few = changes < 3 and (off > 0.05 * reach or len(logs) < 40)
    is_one = abs(abs(slope) - 1) <= 0.3 and (slope > 0 or off <= 0.1)
    return round(slope) if is_one and not (noisy or too_few) else 0
