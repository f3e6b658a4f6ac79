"""Whether a logged gradient norm has the loss scale in it, because it was taken before unscaling."""

from collections.abc import Iterator

import numpy as np

from ampsim.diagnose.history import Floats, History

PLAUSIBLE = (1e-3, 1e3)
"""Norms that a run has."""
LARGE = 1e4
"""A norm that is seldom seen, and often if it is multiplied by a scale."""

HELD = 2.0**28
"""A norm times a scale that no backward pass in float16 makes: 65504 in each of 17 million elements."""


def scaled_norm(history: History) -> Iterator[tuple[str, str]]:
    """Yield the kind of a finding, "scaled norm" or "scaled clip", and a sentence with its numbers."""
    known = (history.scale > 0) & np.isfinite(history.scale)
    if not known.any():
        yield from _without_a_scale(history)
        return
    usable = np.isfinite(history.norm) & (history.norm > 0)
    before = np.maximum.accumulate(np.where(known, np.arange(len(known)), np.argmax(known)))
    norms, scales = history.norm[usable], history.scale[before][usable]  # where none was logged, the last that was
    if len(norms) < 3:
        return
    typical, true = float(np.median(norms)), float(np.median(norms / scales))
    slope, moves = _slope(np.log2(scales), np.log2(norms))
    plausible = typical > LARGE and PLAUSIBLE[0] < true < PLAUSIBLE[1]
    follows = slope > 0.8 and moves >= 4 and typical > 100
    if follows or (plausible and (moves < 2 or float(np.median(norms * scales)) > HELD)):
        yield (
            "scaled norm",
            f"The logged gradient norm is multiplied by the loss scale: its median is {typical:.3g}, the true one "
            f"{true:.3g}" + (", and it jumps wherever the scale does." if follows else "."),
        )
    low, high = np.quantile(norms * scales, [0.1, 0.9])
    if len(norms) >= 20 and high < 1.02 * low and typical < 1e-2:
        yield (
            "scaled clip",
            f"The gradient norm times the loss scale is {low:.3g} at nearly every step, so that the norm is only "
            f"{typical:.3g}: gradients were clipped to {low:.3g} while they were multiplied by the scale.",
        )


def _without_a_scale(history: History) -> Iterator[tuple[str, str]]:
    """Yield a sentence where no scale is logged and the norm is one that no run survives, but a scaled one would be."""
    norms = history.norm[np.isfinite(history.norm)]
    if len(norms) < 2 or not np.isfinite(history.loss).any():
        return
    typical = float(np.median(norms))
    if 2.0**24 < typical < 2.0**40:
        yield (
            "scaled norm",
            f"The logged gradient norm is about {typical:.3g} while the loss is ordinary, and no loss scale is logged: "
            f"divided by 2^32, where Megatron's scale begins, it is {typical / 2**32:.2g}. It was probably taken "
            "before unscaling.",
        )


def _slope(scales: Floats, norms: Floats) -> tuple[float, int]:
    """Return how many octaves a norm moves per octave of the scale, from one entry to the next, and in how many moves.

    Some programs print the scale that a step had, others the one that it left, which the next norm has.
    """
    found = [(0.0, 0)]
    for late in (0, 1):
        x, y = np.diff(scales[: len(scales) - late]), np.diff(norms[late:])
        if moves := int((x != 0).sum()):
            found.append((float(x @ y / (x @ x)), moves))
    return max(found)
