"""Which parameters get no gradient, as fp16 flushes it to zero at the loss scale in force, or as there is none."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ampsim.core.formats import FP16
from ampsim.diagnose.history import History
from ampsim.diagnose.words import counted

FLUSHED_BELOW = math.log2(FP16.smallest_subnormal) - 1
"""Binade below which float16 rounds to zero."""
DEAD = 0.99
"""Share of a layer's nonzero gradients below fp16 at which it learns nothing."""


def dead_layers(history: History) -> Iterator[tuple[str, dict[str, str]]]:
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
