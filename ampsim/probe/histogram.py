"""Exponent histograms of tensors, and the underflow and overflow of a cast at any loss scale.

A power of two shifts the histogram, so one count is enough for all loss scales.
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
    """Bounds of a fraction.

    They differ only if elements lie in a binade that contains a limit of the format.

    Attributes:
        low: Lower bound, 0 to 1.
        high: Upper bound, 0 to 1.
    """

    low: float
    high: float


class CastLoss(NamedTuple):
    """Fractions of the nonzero elements by the result of a cast.

    inf and NaN count as nonzero.

    Attributes:
        flushed: Underflow: rounded to zero.
        subnormal: Nonzero and below the smallest normal.
        overflowed: Not finite, including elements that are inf or NaN.
    """

    flushed: Bounds
    subnormal: Bounds
    overflowed: Bounds


@dataclass(frozen=True, eq=False)
class Histogram:
    """Number of elements per binade of float32. ``+`` adds two histograms.

    Attributes:
        counts: Array of shape ``(280,)``: zeros; binades 2^-149 (index 1) to 2^127 (index 277);
            inf; NaN.
        largest: Largest magnitude; NaN if an element is NaN, else inf if one is inf; 0.0 without
            elements.
    """

    counts: npt.NDArray[np.int64]
    largest: float

    @classmethod
    def of(cls, values: Tensor) -> "Histogram":
        """Count the elements of a tensor; waits for its device.

        Args:
            values: Tensor of any shape, of dtype float32, float16, or bfloat16.

        Returns:
            Histogram: The counts and the largest magnitude.
        """
        return cls.from_counts(exponent_counts(values).cpu().numpy())

    @classmethod
    def from_counts(cls, counts: npt.NDArray[np.int64]) -> "Histogram":
        """Return the histogram of a result of `exponent_counts`.

        Args:
            counts: Array of shape ``(281,)`` and dtype int64.

        Returns:
            Histogram: The counts and the largest magnitude.
        """
        return cls(counts[:BINS], float(largest_of(counts)))

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.counts.sum())

    @property
    def not_finite(self) -> int:
        """Number of elements that are inf or NaN."""
        return int(self.counts[INF:].sum())

    def __add__(self, other: "Histogram") -> "Histogram":
        largest = np.maximum(self.largest, other.largest)  # NaN if either is
        return Histogram(self.counts + other.counts, float(largest))

    def lost(self, scale: float, fmt: Format) -> CastLoss:
        """Return the fractions that a cast at a loss scale flushes or overflows.

        The cast is of ``scale * g`` to `fmt`. Binades without a limit of the format are exact. If
        the scale is a power of two, three binades contain a limit (numbers for fp16): that of the
        largest flushed magnitude, 2^-25, where only 2^-25 itself is flushed; the binade below the
        smallest normal, whose last 2^-11 rounds up; and the highest one, where 65520 and more
        overflow. Whether any element overflows is exact, as `largest` is known.

        Args:
            scale: Loss scale, a positive factor.
            fmt: Floating-point format of the cast.

        Returns:
            CastLoss: Bounds of the three fractions.

        Raises:
            ValueError: If `scale` is not a positive finite number.
        """
        if not 0 < scale < math.inf:
            raise ValueError(
                f"scale={scale!r}: expected a positive finite number; for unscaled gradients pass 1.0"
            )
        # Element x = scale * g of binade e is in [low, high) = scale * [2^e, 2^(e+1)).
        edges = scale * np.exp2(np.arange(SMALLEST, LARGEST + 2, dtype=np.float64))
        low = edges[:-1]
        high = edges[1:]
        # Ties go to the even neighbor: zero, and the smallest normal.
        half = fmt.smallest_subnormal / 2
        normal = fmt.smallest_normal - half
        return CastLoss(
            self._share(high <= half, low <= half),
            self._share(
                (low > half) & (high <= normal), (high > half) & (low < normal)
            ),
            self._overflowed(low, high, scale, fmt),
        )

    def _overflowed(
        self,
        low: npt.NDArray[np.float64],
        high: npt.NDArray[np.float64],
        scale: float,
        fmt: Format,
    ) -> Bounds:
        certain = (
            low >= fmt.overflow_threshold
            if fmt.has_inf
            else low > fmt.overflow_threshold
        )
        possible = high > fmt.overflow_threshold
        if math.isfinite(self.largest) and not _overflows(scale * self.largest, fmt):
            return Bounds(0.0, 0.0)
        share = self._share(certain, possible, self.not_finite)
        return Bounds(max(share.low, 1 / self._nonzero), share.high)

    def _share(
        self,
        certain: npt.NDArray[np.bool_],
        possible: npt.NDArray[np.bool_],
        more: int = 0,
    ) -> Bounds:
        binades = self.counts[1:INF]
        low, high = (int(binades[which].sum()) + more for which in (certain, possible))
        return Bounds(low / self._nonzero, high / self._nonzero)

    @property
    def _nonzero(self) -> int:
        return max(int(self.counts[1:].sum()), 1)

    def overflow_threshold(self, fmt: Format) -> float:
        """Return the largest power of two at which no element overflows.

        Args:
            fmt: Floating-point format of the gradients.

        Returns:
            The threshold, exact. inf if all elements are zero; 0.0 if an element is inf or NaN.
        """
        if self.largest == 0:
            return math.inf
        if not math.isfinite(self.largest):
            return 0.0
        exponent = math.frexp(fmt.overflow_threshold)[1] - math.frexp(self.largest)[1]
        return math.ldexp(
            1.0, exponent - _overflows(math.ldexp(self.largest, exponent), fmt)
        )


def _overflows(magnitude: float, fmt: Format) -> bool:
    threshold = fmt.overflow_threshold
    return magnitude > threshold or (magnitude == threshold and fmt.has_inf)


def largest_of(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the largest magnitudes of `exponent_counts`, shape ``(..., 281)`` to ``(...)``."""
    return counts[..., BINS].astype(np.int32).view(np.float32)


def moved(counts: npt.NDArray[np.int64], exponent: int) -> npt.NDArray[np.int64]:
    """Return counts of all elements times 2^exponent, from `Histogram.counts` of shape ``(...,
    280)``.

    Exact within the range of float32; elements outside are counted in the last binade at that end.
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
