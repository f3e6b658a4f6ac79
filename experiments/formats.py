"""Does one loss scale suffice for a number format, and does the range budget tell?

The gradients of `gradient_histogram`, in float32, against fp16, bf16, E5M2 and E4M3, at the best scale that a whole
model can have: the largest power of two at which no element overflows. What it flushes is held against what would be
flushed if each tensor had a scale of its own, and against theorem T9: elements are taken to be log-normal with the
mean and spread of log2|g| that were measured, and the largest of n either where that of n is expected or where it was
found. All are rounded once; a backward pass in a format loses more, see `gradient_histogram`.

Device: cpu, or cuda with `--device cuda`, where the models are larger.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ampsim.core import theory
from ampsim.core.formats import BF16, E4M3, E5M2, FP16, Format
from ampsim.probe import Histogram
from ampsim.probe.binades import INF, SMALLEST, ZERO
from ampsim.records import Record
from experiments import runner
from experiments.training import gradient_snapshots, series
from experiments.training.gradient_snapshots import CASES, probed, snapshots, total

FORMATS = (BF16, FP16, E5M2, E4M3)
LARGEST = 127  # log2 of the largest loss scale, a float32 number
SHARE = 1e-3  # of the elements that may be flushed where one scale is said to suffice
MOST = 4  # tensors that are named
BELOW = 64  # binades below the largest element whose counts are kept


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 200  # optimizer steps per unit; then the gradients are measured
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches


SMOKE = Config(steps=1, seeds=(0,))


def arms(config: Config) -> dict[str, gradient_snapshots.Model]:
    return gradient_snapshots.ARMS


def inputs() -> dict[str, str]:
    return gradient_snapshots.inputs(*CASES)


def run(config: Config, arm: gradient_snapshots.Model, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train one model with one seed; the columns are explained in `data/README.md`."""
    ((step, task, batch),) = snapshots(arm.name, seed, device, [config.steps])
    rows = probed(task, batch)
    tick(step)
    return {
        f"{kind}s": measured({row.name: row.histogram for row in rows if row.kind == kind})
        for kind in ("parameter", "activation")
    }


def measured(tensors: Mapping[str, Histogram]) -> Record:
    """Return the histograms of a model's tensors against each format."""
    whole = total(tensors.values())
    spread = fit(whole)
    return {
        "tensors": len(tensors),
        "elements": spread.elements,
        "log2_mean": series.six_digits([spread.mean])[0],
        "log2_sigma": series.six_digits([spread.sigma])[0],
        "log2_sigma_within": series.six_digits([within(list(tensors.values()))])[0],
        "log2_largest": series.six_digits([math.log2(whole.largest)])[0],
        "counts": from_the_largest(whole),
        "formats": {fmt.name: against(fmt, tensors, whole, spread) for fmt in FORMATS},
    }


def against(fmt: Format, tensors: Mapping[str, Histogram], whole: Histogram, spread: "Spread") -> Record:
    """Return what one format loses of a model's gradients."""
    scale = best_scale(whole, fmt)
    headroom = math.log2(fmt.overflow_threshold / (scale * whole.largest))
    expected = NormalDist().inv_cdf(1 - 1 / spread.elements)
    found = (math.log2(whole.largest) - spread.mean) / spread.sigma
    own = sum(flushed(tensor, best_scale(tensor, fmt), fmt) * nonzero(tensor) for tensor in tensors.values())
    shared = {name: round(flushed(tensor, scale, fmt) * nonzero(tensor)) for name, tensor in tensors.items()}
    log2_least, least = least_lost(whole, fmt)
    return {
        "log2_scale": round(math.log2(scale)),
        "log2_scales": sorted(round(math.log2(best_scale(t, fmt))) for t in tensors.values() if t.largest),
        "flushed": series.six_digits([flushed(whole, scale, fmt)])[0],
        "most_flushed": [[name, n] for name, n in sorted(shared.items(), key=lambda item: -item[1])[:MOST] if n],
        "flushed_per_tensor": series.six_digits([own / spread.elements])[0],
        "predicted": series.six_digits([theory.flushed_share(spread.sigma, expected, headroom, binades(fmt))])[0],
        "from_largest": series.six_digits([theory.flushed_share(spread.sigma, found, headroom, binades(fmt))])[0],
        "widest_sigma": series.six_digits([theory.widest_spread(expected, SHARE, headroom, binades(fmt))])[0],
        "log2_least": log2_least,
        "least_lost": series.six_digits([least])[0],
    }


def best_scale(histogram: Histogram, fmt: Format) -> float:
    """Return the largest power of two that a loss scale can be and at which nothing overflows."""
    return min(histogram.ceiling(fmt), 2.0**LARGEST)


def flushed(histogram: Histogram, scale: float, fmt: Format) -> float:
    """Return the share of nonzero elements; `low` leaves out one magnitude, half the smallest subnormal itself."""
    return histogram.lost(scale, fmt).flushed.low


def least_lost(histogram: Histogram, fmt: Format) -> tuple[int, float]:
    """Return log2 of the scale at which fewest elements are lost, if some may overflow, and their share.

    An upper bound: the binade that the upper limit cuts counts as overflowed.
    """
    best = round(math.log2(best_scale(histogram, fmt)))

    def lost(k: int) -> float:
        shares = histogram.lost(2.0**k, fmt)
        return shares.flushed.low + shares.overflowed.high

    least = min(range(best, min(best + BELOW, LARGEST) + 1), key=lost)
    return least, lost(least)


def binades(fmt: Format) -> float:
    """Return the binades between what is flushed and what overflows: T9's R, 41 for fp16."""
    return math.log2(fmt.overflow_threshold / (fmt.smallest_subnormal / 2))


class Spread(NamedTuple):
    """The spread of log2|g| over the nonzero elements."""

    elements: int
    mean: float
    sigma: float


def fit(histogram: Histogram) -> Spread:
    """Return the log-normal with the histogram's first two moments.

    Within a binade log2|g| is taken at the middle; what that adds to the variance, 1/12, is taken off again
    (Sheppard's correction).
    """
    counts = histogram.counts[ZERO + 1 : INF]
    elements, middles = int(counts.sum()), np.arange(len(counts)) + SMALLEST + 0.5
    mean = float(counts @ middles) / elements
    variance = float(counts @ (middles - mean) ** 2) / elements - 1 / 12
    return Spread(elements, mean, math.sqrt(max(variance, 0.0)))


def within(tensors: Sequence[Histogram]) -> float:
    """Return the deviation of log2|g| about its own tensor's mean, bits: no scale per tensor can narrow it."""
    spreads = [fit(tensor) for tensor in tensors if tensor.largest]
    elements = sum(spread.elements for spread in spreads)
    return math.sqrt(sum(spread.elements * spread.sigma**2 for spread in spreads) / elements)


def nonzero(histogram: Histogram) -> int:
    return histogram.size - int(histogram.counts[ZERO])


def from_the_largest(histogram: Histogram) -> list[int]:
    """Count elements in the largest's binade, in the one below, ...; the last entry has all further down."""
    counts = histogram.counts[ZERO + 1 : INF]
    down = counts[: counts.nonzero()[0][-1] + 1][::-1]
    return [*map(int, down[:BELOW]), int(down[BELOW:].sum())]


if __name__ == "__main__":
    raise SystemExit(runner.main("formats"))
