"""Findings about runs that `ampsim.runs.watch` recorded."""

import numpy as np

from ampsim.core.formats import FP16
from ampsim.runs.findings.evidence import Evidence
from ampsim.runs.findings.finding import Finding

_FLUSHED = float(np.log2(FP16.smallest_subnormal)) - 1
_LOWEST = -149  # binade of the second bin of a histogram
DEAD = 0.99
"""Share of the elements of a gradient that are 0 or underflow, from which no gradient reaches the parameter."""


def recorded_warning(run: Evidence) -> Finding | None:
    """`watch` warned, for example that no parameter changes."""
    if not run.history.warnings:
        return None
    step, text = run.history.warnings[0]
    message = f"watch() warned at step {step}: {text.rstrip('.')}."
    return Finding(
        "recorded-warning", "problem", "proved", message, step=float(step), values={"text": text}
    )


def dead_parameters(run: Evidence) -> Finding | None:
    """No gradient reaches some parameters in the last samples."""
    samples, scale = run.history.samples[-3:], run.scale
    if len(samples) < 2 or scale is None:
        return None
    names = set(samples[-1].counts)
    total = len(names)
    for sample in samples:
        value = float(
            scale.values[min(int(np.searchsorted(scale.steps, sample.step)), len(scale) - 1)]
        )
        names &= {name for name, counts in sample.counts.items() if _is_dead(counts, value)}
    if not names or len(names) == total:
        return None
    shown = ", ".join(sorted(names)[:3]) + (
        f", and {len(names) - 3} more" if len(names) > 3 else ""
    )
    message = (
        f"No gradient reaches {len(names)} of {total} parameters: {shown}. At least 99 % of "
        "their gradient elements are 0 or "
        "underflow in float16 at this scale."
    )
    return Finding(
        "dead-parameters",
        "problem",
        "likely",
        message,
        step=float(samples[0].step),
        values={"count": len(names)},
    )


def _is_dead(counts: np.ndarray, scale: float) -> bool:
    """Return whether nearly all elements of a gradient are 0 or underflow at a scale."""
    if not scale > 0 or counts[-2:].any():
        return False
    binades = np.arange(_LOWEST, _LOWEST + len(counts) - 3) + np.log2(scale)
    flushed = counts[0] + counts[1:-2][binades < _FLUSHED].sum()
    return bool(flushed >= DEAD * max(1, counts.sum()))
