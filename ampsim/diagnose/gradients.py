"""What norms and samples tell: gradients clipped while scaled, or layers that get none or lose them to float16."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ampsim.core.formats import FP16
from ampsim.diagnose.history import Floats, History
from ampsim.diagnose.words import counted

Found = Iterator[tuple[str, dict[str, float | str]]]
FLUSHED_BELOW = math.log2(FP16.smallest_subnormal) - 1
"""Binade below which float16 rounds to zero."""
DEAD = 0.99
"""Share of a layer's nonzero gradients below fp16 at which it learns nothing."""


def dead_layers(history: History) -> Found:
    """Yield the kind of a statement and its numbers, with the names; nothing if there are none, or if all are dead."""
    if len(history.samples) < 2:
        return
    share: dict[str, list[float]] = {}
    known = ~np.isnan(history.scale)
    for sample in history.samples:
        scale = float(np.interp(sample.step, history.step[known], history.scale[known])) if known.any() else np.nan
        for name, counts in sample.counts.items():
            share.setdefault(name, []).append(_flushed(counts, scale))
    dead = [name for name, shares in share.items() if np.median(shares) >= DEAD]
    if dead and len(dead) < len(share):
        names = ", ".join(dead[:4]) + (f" and {counted(len(dead) - 4, 'other')}" if len(dead) > 4 else "")
        yield "dead layer", {"count": str(len(dead)), "of": str(len(share)), "names": names}


def _flushed(counts: npt.NDArray[np.int64], scale: float) -> float:
    """Return the share of the finite elements that float16 would make zero at a scale; zeros are counted too."""
    finite = int(counts[:-2].sum())
    if not finite or not scale > 0:
        return 0.0
    binades = np.arange(-149, 128)
    below = int(counts[1:-2][binades + math.log2(scale) < FLUSHED_BELOW].sum())
    return (int(counts[0]) + below) / finite


def scaled_norm(history: History, means: bool) -> Found:
    """Yield the kind of a statement, "scaled norm" or "scaled clip", and its numbers."""
    known = (history.scale > 0) & np.isfinite(history.scale)
    usable = known & np.isfinite(history.norm) & (history.norm > 0)
    norms, scales = history.norm[usable], history.scale[usable]
    if means or len(norms) < 8:
        return
    slope, moves = _slope(np.log2(scales), np.log2(norms))
    low, high = np.quantile(norms * scales, [0.1, 0.9])
    typical = float(np.median(norms))
    if slope > 0.8 and moves >= 4 and typical > 100:
        yield "scaled norm", {"moves": moves, "true": float(f"{np.median(norms / scales):.3g}")}
    elif len(norms) >= 20 and high < 1.02 * low and typical < 1e-2:
        yield "scaled clip", {"true": float(f"{low:.3g}"), "typical": float(f"{typical:.3g}")}


def _slope(scales: Floats, norms: Floats) -> tuple[float, int]:
    """Return how many octaves a norm moves per octave of the scale, from one row to the next, and in how many moves.

    Some programs print the scale that a step had, others the one that it left, which the next norm has.
    """
    found = [(0.0, 0)]
    for late in (0, 1):
        x, y = np.diff(scales[: len(scales) - late]), np.diff(norms[late:])
        if moves := int((x != 0).sum()):
            found.append((float(x @ y / (x @ x)), moves))
    return max(found)
