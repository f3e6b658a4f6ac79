"""Where a run's gradients lie among the binades, and what share float16 makes zero."""

import base64
import math

import numpy as np
import numpy.typing as npt

from ampsim.core.formats import FP16
from ampsim.runs.read.history import History, Series, flushed
from ampsim.runs.record.run_file import BINS, LOWEST

CELLS = 1 << 22
"""Layers times samples times binades that a page holds; of more, some samples are left out."""
FAINTEST = -6.0
"""log10 of the share of the elements in one binade that is still told from none."""
# log2 of the sizes at scale 1 between which float16 rounds nothing to 0 or inf; it loses digits
# below `normal`.
WINDOW = {
    "flushed": math.log2(FP16.smallest_subnormal) - 1,
    "normal": math.log2(FP16.smallest_normal),
    "overflowed": round(math.log2(FP16.overflow_threshold)),  # 65520 is 2^15.9997
}
ALL = "all parameters"


def exponent_heatmap(
    history: History, scale: Series | None
) -> dict[str, object] | None:
    """Return what the heat maps of a page show, as JSON data; None without samples.

    Args:
        history: A recorded run.
        scale: Its loss scale by step; None if it has no scaler.

    Returns:
        ``step`` of each sample; ``layers``, all parameters first, then in the model's order;
        ``lowest``, the binade of the first of ``bins``; ``levels``, shape (layers, samples,
        binades): 0 for none, else 1 to 255 by the logarithm of the share of the elements; ``lost``,
        shape (layers, samples): share of the nonzero elements that float16 makes zero, NaN without
        a scale or a nonzero element.
    """
    samples = history.samples
    if not samples:
        return None
    names = dict.fromkeys(name for sample in samples for name in sample.counts)
    layers = {
        name: row for row, name in enumerate(dict.fromkeys([ALL, *map(_layer, names)]))
    }
    samples = samples[:: -(-len(layers) * len(samples) * BINS // CELLS)]
    counts = np.zeros((len(layers), len(samples), BINS), np.int64)
    for column, sample in enumerate(samples):
        for name, histogram in sample.counts.items():
            counts[[0, layers[_layer(name)]], column] += histogram
    steps = [sample.step for sample in samples]
    scales = np.full(len(steps), math.nan)
    if scale is not None:
        scales = scale.values[
            np.clip(np.searchsorted(scale.steps, steps), 0, len(scale) - 1)
        ]
    inner = counts[..., 1:-2]
    total = inner.sum(-1)
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # at scale 0 all elements are lost
        lost = np.where(scales >= 0, flushed(counts, scales) / total, np.nan)
    share = inner / np.maximum(total, 1)[..., None]
    level = 1 + 254 * (1 - np.log10(np.where(share > 0, share, 1.0)) / FAINTEST)
    levels = np.where(share > 0, np.clip(level, 1, 255).round(), 0).astype(np.uint8)
    seen = np.flatnonzero(levels.any(axis=(0, 1)))
    low, high = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (139, 149)
    return {
        "step": steps,
        "layers": list(layers),
        "lowest": low + LOWEST,
        "bins": high - low,
        "levels": packed(levels[..., low:high], "uint8"),
        "lost": packed(lost),
        "window": WINDOW,
    }


def packed(values: npt.NDArray[np.number], kind: str = "float32") -> dict[str, str]:
    """Return an array as JSON can hold it: ``{"float32": base64 of its little-endian bytes}``."""
    with np.errstate(over="ignore"):  # beyond float32's range is inf
        raw = np.asarray(values).astype(np.dtype(kind).newbyteorder("<")).tobytes()
    return {kind: base64.b64encode(raw).decode()}


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter
