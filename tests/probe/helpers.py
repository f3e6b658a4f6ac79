"""Counts by numpy's frexp, and bit patterns to count."""

import numpy as np
import torch

from ampsim.probe import Histogram
from ampsim.probe.binades import BINS, INF, NAN, SMALLEST, ZERO

EVERY_16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
HALVES = [torch.float16, torch.bfloat16]


def reference(values: torch.Tensor) -> Histogram:
    """By float64's frexp."""
    wide = values.detach().cpu().reshape(-1).to(torch.float64).numpy()
    finite = wide[np.isfinite(wide) & (wide != 0)]
    counts = np.zeros(BINS, np.int64)
    np.add.at(counts, np.frexp(finite)[1] - 1 - SMALLEST + 1, 1)
    counts[[ZERO, INF, NAN]] = (
        (wide == 0).sum(),
        np.isinf(wide).sum(),
        np.isnan(wide).sum(),
    )
    return Histogram(counts, float(np.abs(wide).max(initial=0.0)))


def same(a: Histogram, b: Histogram) -> None:
    np.testing.assert_array_equal(a.counts, b.counts)
    np.testing.assert_equal(a.largest, b.largest)


def random_bits(seed: int, size: int) -> torch.Tensor:
    bits = np.random.default_rng(seed).integers(0, 2**32, size, dtype=np.uint32)
    return torch.from_numpy(bits.view(np.float32).copy())
