"""What a scale and a format would lose of a tensor, from how many of its elements lie in each binade of float32.

Multiplying by a power of two moves a whole histogram, so one count answers for every loss scale.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ampsim.core.formats import Format
from ampsim.probe.binades import BINS, INF, LARGEST, SMALLEST
from ampsim.probe.counting import exponent_counts


class Bounds(NamedTuple):
    """Bounds of a fraction; equal unless elements lie in the binade that a limit of the format cuts.

    Attributes:
        low: at least this.
        high: at most this.
    """

    low: float
    high: float


class CastLoss(NamedTuple):
    """Fractions of the nonzero elements, inf and NaN among them, by what a cast makes of them.

    Attributes:
        flushed: rounded to zero.
        subnormal: nonzero, and below the smallest normal.
        overflowed: not finite; inf and NaN included.
    """

    flushed: Bounds
    subnormal: Bounds
    overflowed: Bounds


@dataclass(frozen=True, eq=False)
class Histogram:
    """Elements per binade of float32. Histograms add up with ``+``.

    Attributes:
        counts: shape (280,): zeros; binades 2^-149 (index 1) to 2^127 (index 277); inf; NaN.
        largest: the largest magnitude; inf or NaN if one is, NaN before inf; 0.0 of nothing.
    """

    counts: npt.NDArray[np.int64]
    largest: float

    @classmethod
    def of(cls, values: Tensor) -> "Histogram":
        """Count a tensor, see `exponent_counts`. Of a tensor on a device, this waits for it."""
        return cls.from_counts(exponent_counts(values).cpu().numpy())

    @classmethod
    def from_counts(cls, counts: npt.NDArray[np.int64]) -> "Histogram":
        """Make one from what `exponent_counts` returned, int64, shape (281,)."""
        return cls(counts[:BINS], float(largest_of(counts)))

    @property
    def size(self) -> int:
        """Elements counted."""
        return int(self.counts.sum())

    @property
    def not_finite(self) -> int:
        """Elements that are inf or NaN."""
        return int(self.counts[INF:].sum())

    def __add__(self, other: "Histogram") -> "Histogram":
        either = (self.largest, other.largest)
        return Histogram(
            self.counts + other.counts, math.nan if any(map(math.isnan, either)) else max(either)
        )

    def lost(self, scale: float, fmt: Format) -> CastLoss:
        """Return what rounding ``scale * g`` to `fmt` would lose, for any scale, from this one count.

        A binade that a limit does not cut is counted exactly. With a power of two for scale, three binades are
        cut (fp16's are given): at the largest flushed magnitude, 2^-25, of which only exact powers of two are
        flushed; below the smallest normal, of which the last 2^-11 rounds up to it; and at the top, of which
        65520 and more overflow. Whether anything overflows is exact, as `largest` is known.

        Raises:
            ValueError: `scale` is not a positive number.
        """
        if not 0 < scale < math.inf:
            raise ValueError(
                f"scale={scale!r}: expected a positive number; for gradients as they are pass 1.0"
            )
        # Element x = scale * g of binade e is in [low, high) = scale * [2^e, 2^(e+1)).
        edges = scale * np.exp2(np.arange(SMALLEST, LARGEST + 2, dtype=np.float64))
        low, high = edges[:-1], edges[1:]
        # Ties go to the even neighbour: zero, and the smallest normal.
        half = fmt.smallest_subnormal / 2
        normal = fmt.smallest_normal - half
        return CastLoss(
            self._share(high <= half, low <= half),
            self._share((low > half) & (high <= normal), (high > half) & (low < normal)),
            self._overflowed(low, high, scale, fmt),
        )

    def _overflowed(
        self, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], scale: float, fmt: Format
    ) -> Bounds:
        certain = low >= fmt.overflow_threshold if fmt.has_inf else low > fmt.overflow_threshold
        possible = high > fmt.overflow_threshold
        if math.isfinite(self.largest) and not _overflows(scale * self.largest, fmt):
            return Bounds(0.0, 0.0)
        share = self._share(certain, possible, self.not_finite)
        return Bounds(max(share.low, 1 / self._nonzero), share.high)

    def _share(
        self, certain: npt.NDArray[np.bool_], possible: npt.NDArray[np.bool_], more: int = 0
    ) -> Bounds:
        binades = self.counts[1:INF]
        low, high = (int(binades[which].sum()) + more for which in (certain, possible))
        return Bounds(low / self._nonzero, high / self._nonzero)

    @property
    def _nonzero(self) -> int:
        return max(int(self.counts[1:].sum()), 1)

    def overflow_threshold(self, fmt: Format) -> float:
        """Return the largest power of two at which no element would overflow in `fmt`: exact, from `largest`.

        inf if all are zero; 0.0 if one is inf or NaN.
        """
        if self.largest == 0:
            return math.inf
        if not math.isfinite(self.largest):
            return 0.0
        exponent = math.frexp(fmt.overflow_threshold)[1] - math.frexp(self.largest)[1]
        return math.ldexp(1.0, exponent - _overflows(math.ldexp(self.largest, exponent), fmt))


def _overflows(magnitude: float, fmt: Format) -> bool:
    threshold = fmt.overflow_threshold
    return magnitude > threshold or (magnitude == threshold and fmt.has_inf)


def largest_of(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the largest magnitudes in some `exponent_counts`, shape (..., 281) to (...)."""
    return counts[..., BINS].astype(np.int32).view(np.float32)


def moved(counts: npt.NDArray[np.int64], exponent: int) -> npt.NDArray[np.int64]:
    """Return the counts of every element times 2^exponent, from `Histogram.counts`, shape (..., 280).

    Exact within float32's range; what leaves it is counted in the last binade at that end.
    """
    binades = counts[..., 1:INF]
    last = binades.shape[-1] - 1
    by = min(abs(exponent), last)
    left = binades[..., ::-1] if exponent < 0 else binades  # towards higher indices
    new = np.zeros_like(left)
    new[..., by:] = left[..., : last + 1 - by]
    new[..., last] += left[..., last + 1 - by :].sum(axis=-1)
    result = counts.copy()
    result[..., 1:INF] = new[..., ::-1] if exponent < 0 else new
    return result
