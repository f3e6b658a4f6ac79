"""Whether a printed gradient norm has the loss scale in it, because it was taken before unscaling."""

from collections.abc import Iterator

import numpy as np

from ampsim.diagnose.history import Floats, History


def scaled_norm(history: History, means: bool) -> Iterator[tuple[str, dict[str, float]]]:
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
