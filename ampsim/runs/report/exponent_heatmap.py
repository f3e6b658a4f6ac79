"""Where a run's gradients lie among the binades, by layer, and what share of them float16 makes zero."""

import base64
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampsim.core.formats import FP16
from ampsim.runs.read.history import History, Sample, Series

CELLS = (
    1 << 22
)  # layers times samples times binades that a page holds; of more, every second sample is left out
FAINTEST = -6.0  # log10 of the share of the elements in one binade that is still told from none
# log2 of the sizes at scale 1 between which float16 rounds nothing to zero or inf; below `normal` it loses digits
WINDOW = {
    "flushed": math.log2(FP16.smallest_subnormal) - 1,
    "normal": math.log2(FP16.smallest_normal),
    "overflowed": round(math.log2(FP16.overflow_threshold)),  # 65520 is 2^15.9997
}
ALL = "all parameters"


@dataclass(frozen=True, eq=False)
class Exponents:
    """The samples of a run by layer: what the heat maps of a page show."""

    step: list[int]  # of each sample
    layers: list[str]  # names, "all parameters" first, then in the model's order
    lowest: int  # the binade of the first of `levels`
    levels: npt.NDArray[np.uint8]
    """Shape (layers, samples, binades): 0 for none, else 1 to 255 by the logarithm of the share of the elements."""
    lost: npt.NDArray[np.float64]
    """Shape (layers, samples): share of the nonzero elements that float16 makes zero at the scale of the step; NaN
    without a scale or a nonzero element."""

    def to_json(self) -> dict[str, object]:
        """Return what the page's script reads."""
        arrays = {
            "bins": self.levels.shape[2],
            "levels": packed(self.levels, "uint8"),
            "lost": packed(self.lost),
        }
        known = (
            (name, row[~np.isnan(row)]) for name, row in zip(self.layers, self.lost, strict=True)
        )
        underflow = {
            name: [float(np.median(row)), float(row.max())] for name, row in known if len(row)
        }
        return {
            "underflow": underflow,
            "step": self.step,
            "layers": self.layers,
            "lowest": self.lowest,
            **arrays,
            "window": WINDOW,
        }


def packed(values: npt.NDArray[np.number], kind: str = "float32") -> dict[str, str]:
    """Return an array as JSON can hold it, inf and NaN included: ``{"float32": base64 of its little-endian bytes}``."""
    with np.errstate(over="ignore"):  # beyond float32's range is inf
        raw = np.asarray(values).astype(np.dtype(kind).newbyteorder("<")).tobytes()
    return {kind: base64.b64encode(raw).decode()}


def exponents(history: History, scale: Series | None) -> Exponents | None:
    """Return the samples of a run by layer; None without samples.

    Args:
        history: A recorded run.
        scale: Its loss scale by step; None if it has no scaler.
    """
    if not history.samples:
        return None
    samples = history.samples
    names = dict.fromkeys(name for sample in samples for name in sample.counts)
    layers = {name: i for i, name in enumerate(dict.fromkeys([ALL, *map(_layer, names)]))}
    seen = np.any(
        [counts[1:-2] > 0 for sample in samples for counts in sample.counts.values()], axis=0
    )
    binades = np.flatnonzero(seen)
    low, high = (int(binades[0]), int(binades[-1]) + 1) if len(binades) else (140, 150)
    while len(samples) * len(layers) * (high - low) > CELLS and len(samples) > 2:
        samples = samples[::2]
    counts = np.stack(
        [_by_layer(sample, layers)[:, 1 + low : 1 + high] for sample in samples], axis=1
    )
    steps = [sample.step for sample in samples]
    scales = np.full(len(steps), math.nan)
    if scale is not None:
        scales = scale.values[np.clip(np.searchsorted(scale.steps, steps), 0, len(scale) - 1)]
    lost = _lost(counts, low - 149, scales)
    return Exponents(steps, list(layers), low - 149, _levels(counts), lost)


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def _by_layer(sample: Sample, layers: dict[str, int]) -> npt.NDArray[np.int64]:
    """Return the histograms of a sample by layer, (layers, 280)."""
    total = np.zeros((len(layers), 280), np.int64)
    for name, counts in sample.counts.items():
        total[0] += counts
        total[layers[_layer(name)]] += counts
    return total


def _levels(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return how dark each binade is, 0 to 255, by the logarithm of its share of the nonzero elements."""
    share = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
    level = 1 + 254 * (1 - np.log10(np.where(share > 0, share, 1.0)) / FAINTEST)
    return np.where(share > 0, np.clip(level, 1, 255).round(), 0).astype(np.uint8)


def flushed(
    counts: npt.NDArray[np.int64], lowest: int, scale: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Return how many elements float16 makes zero; counts: shape (..., binades), the first of them `lowest`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        binades = np.arange(lowest, lowest + counts.shape[-1]) + np.log2(scale)[..., None]
    return np.asarray((counts * (binades < WINDOW["flushed"])).sum(-1))


def _lost(
    counts: npt.NDArray[np.int64], lowest: int, scale: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the share of the nonzero elements that float16 makes zero, (layers, samples)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            scale >= 0, flushed(counts, lowest, scale) / counts.sum(-1), np.nan
        )  # at scale 0 all are lost
