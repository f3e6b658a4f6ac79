"""How many elements of a tensor lie in each binade of float32, and what a scale and a format would lose of them.

float16 and bfloat16 are counted as the float32 numbers that they are: both convert exactly. Multiplying by a power
of two moves a whole histogram, so one count answers for every loss scale.

On the CPU one read counts, and takes the largest magnitude on the way: 8 bits of exponent an element, two elements
an index where the tensor is large, as half as many increments are worth a table of 65,536. Elsewhere the counting
waits for nothing; that path has not run on CUDA.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampsim.core.formats import Format

SMALLEST, LARGEST = -149, 127
"""Exponents of float32's lowest subnormal and highest binade; binade e is [2^e, 2^(e+1))."""
ZERO, INF, NAN = 0, LARGEST - SMALLEST + 2, LARGEST - SMALLEST + 3
"""Indices into the counts; binade e has index ``e - SMALLEST + 1``."""
BINS = NAN + 1

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_CHUNK = 1 << 18  # elements: their exponents, 1 byte each, stay in the second-level cache
_FEW = 1 << 11  # elements below which numpy counts faster than torch; measured
_PAIRS = 1 << 17  # elements from which counting pairs is faster than counting singly; measured
_DEVICE_CHUNK = 1 << 24  # elements: index and temporaries take about 30 bytes an element
_MAGNITUDE, _INF_BITS = 0x7FFFFFFF, 0x7F800000
_FIRST_NORMAL = 24  # index of 2^-126; the 23 subnormal binades come before it


class Share(NamedTuple):
    """Bounds of a fraction; equal unless elements lie in the binade that a limit of the format cuts."""

    low: float
    high: float


class Lost(NamedTuple):
    """Fractions of the nonzero elements, inf and NaN among them, by what a cast makes of them."""

    flushed: Share
    """Rounded to zero."""
    subnormal: Share
    """Nonzero, and below the smallest normal."""
    overflowed: Share
    """Not finite; inf and NaN included."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Elements per binade of float32. Histograms add up with ``+``."""

    counts: npt.NDArray[np.int64]
    """Shape (280,): zeros; binades 2^-149 (index 1) to 2^127 (index 277); inf; NaN."""
    largest: float
    """The largest magnitude; inf or NaN if one is, NaN before inf; 0.0 of nothing."""

    @classmethod
    def of(cls, values: Tensor) -> "Histogram":
        """Count a tensor, see `exponent_counts`. Of a tensor on a device, this waits for it."""
        return cls.from_counts(exponent_counts(values).cpu().numpy())

    @classmethod
    def from_counts(cls, counts: npt.NDArray[np.int64]) -> "Histogram":
        """From what `exponent_counts` returned, int64, shape (281,)."""
        return cls(counts[:BINS], float(counts[BINS:].astype(np.int32).view(np.float32)[0]))

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
        return Histogram(self.counts + other.counts, math.nan if any(map(math.isnan, either)) else max(either))

    def times_power(self, exponent: int) -> "Histogram":
        """The histogram of every element times 2^exponent.

        Exact within float32's range; what leaves it is counted in the last binade at that end. `largest` is exact.
        """
        index = np.arange(1, INF)
        moved = np.clip(index + exponent, 1, INF - 1)
        counts = self.counts.copy()
        counts[1:INF] = 0
        np.add.at(counts, moved, self.counts[1:INF])
        return Histogram(counts, math.ldexp(self.largest, exponent))

    def lost(self, scale: float, fmt: Format) -> Lost:
        """What rounding ``scale * g`` to `fmt` would lose, for any scale, from this one count.

        A binade that a limit does not cut is counted exactly. With a power of two for scale, three binades are
        cut (fp16's are given): at the largest flushed magnitude, 2^-25, of which only exact powers of two are
        flushed; below the smallest normal, of which the last 2^-11 rounds up to it; and at the top, of which
        65520 and more overflow. Whether anything overflows is exact, as `largest` is known.

        Raises:
            ValueError: `scale` is not a positive number.
        """
        if not 0 < scale < math.inf:
            raise ValueError(f"scale={scale!r}: expected a positive number; for gradients as they are pass 1.0")
        # Element x = scale * g of binade e is in [low, high) = scale * [2^e, 2^(e+1)).
        edges = scale * np.exp2(np.arange(SMALLEST, LARGEST + 2, dtype=np.float64))
        low, high = edges[:-1], edges[1:]
        # Ties go to the even neighbour: zero, and the smallest normal.
        half = fmt.smallest_subnormal / 2
        normal = fmt.smallest_normal - half
        return Lost(
            self._share(high <= half, low <= half),
            self._share((low > half) & (high <= normal), (high > half) & (low < normal)),
            self._overflowed(low, high, scale, fmt),
        )

    def _overflowed(
        self, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], scale: float, fmt: Format
    ) -> Share:
        certain = low >= fmt.overflow_threshold if fmt.has_inf else low > fmt.overflow_threshold
        possible = high > fmt.overflow_threshold
        if math.isfinite(self.largest) and not _overflows(scale * self.largest, fmt):
            return Share(0.0, 0.0)
        share = self._share(certain, possible, self.not_finite)
        return Share(max(share.low, 1 / self._nonzero), share.high)

    def _share(self, certain: npt.NDArray[np.bool_], possible: npt.NDArray[np.bool_], more: int = 0) -> Share:
        binades = self.counts[1:INF]
        low, high = (int(binades[which].sum()) + more for which in (certain, possible))
        return Share(low / self._nonzero, high / self._nonzero)

    @property
    def _nonzero(self) -> int:
        return max(int(self.counts[1:].sum()), 1)

    def ceiling(self, fmt: Format) -> float:
        """The largest power of two at which no element would overflow in `fmt`: exact, from `largest`.

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


def exponent_counts(values: Tensor) -> Tensor:
    """Elements per binade, and the largest magnitude.

    Args:
        values: any shape and device; float32, float16 or bfloat16.

    Returns:
        int64, shape (281,), on the device of `values`: `Histogram.counts`, then the bits of the largest magnitude
        as a float32. Two of them are merged by `merge_counts`.

    Raises:
        TypeError: another dtype.
    """
    if values.dtype not in DTYPES:
        raise TypeError(f"values of {values.dtype}: expected float32, float16 or bfloat16; pass values.float()")
    flat = values.detach().reshape(-1)
    if not flat.numel():
        return torch.zeros(BINS + 1, dtype=torch.int64, device=flat.device)
    on_host = flat.device.type == "cpu"
    count, chunk = (_on_host, _CHUNK) if on_host else (_on_device, _DEVICE_CHUNK)
    parts = torch.split(flat, chunk) if flat.numel() > chunk else (flat,)
    return functools.reduce(merge_counts, (count(part.float().view(torch.int32)) for part in parts))


def merge_counts(a: Tensor, b: Tensor) -> Tensor:
    """Of two tensors together, from the `exponent_counts` of each."""
    total = a + b
    torch.maximum(a[BINS], b[BINS], out=total[BINS])
    return total


def _on_host(bits: Tensor) -> Tensor:
    """`exponent_counts` of float32 bits, int32, at least one."""
    counts = np.zeros(BINS + 1, np.int64)
    numbers = bits.numpy()
    fields = _fields(bits, numbers)
    counts[_FIRST_NORMAL : INF + 1] = fields[1:]
    # Signed, the largest is the largest positive number; unsigned, the largest negative one.
    counts[BINS] = max(int(numbers.max()), int(numbers.view(np.uint32).max()) - 2**31)
    if fields[0]:
        counts[:_FIRST_NORMAL] = _small(bits, numbers, int(fields[0]))
    if fields[255]:
        counts[NAN] = int(((bits & _MAGNITUDE) > _INF_BITS).sum())
        counts[INF] -= counts[NAN]
    return torch.from_numpy(counts)


def _fields(bits: Tensor, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """How often each of the 256 exponent fields occurs; `numbers` are the same memory."""
    if len(numbers) < _FEW:
        return np.bincount((numbers >> 23) & 0xFF, minlength=256)
    fields = (bits >> 23).to(torch.uint8)  # the sign is cut off
    if len(fields) < _PAIRS or len(fields) % 2:
        return torch.bincount(fields, minlength=256).numpy()
    pairs = fields.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    table = torch.bincount(pairs, minlength=1 << 16).view(256, 256)
    return (table.sum(0) + table.sum(1)).numpy()


def _small(bits: Tensor, numbers: npt.NDArray[np.int32], many: int) -> npt.NDArray[np.int64]:
    """Zeros and the 23 subnormal binades, `many` in all, by integers: a CPU may be set to read subnormals as zero."""
    zeros = np.count_nonzero(numbers == 0) + np.count_nonzero(numbers == np.int32(-(2**31)))
    counts = np.zeros(_FIRST_NORMAL, np.int64)
    if zeros < many:
        magnitudes = bits & _MAGNITUDE
        subnormal = magnitudes[(magnitudes > 0) & (magnitudes < 1 << 23)]
        counts = torch.bincount(_small_index(subnormal), minlength=_FIRST_NORMAL).numpy()
    counts[ZERO] = zeros
    return counts


def _small_index(magnitudes: Tensor) -> Tensor:
    """Index of zeros and subnormals m * 2^-149, from bits m < 2^23: 1 + floor(log2 m), as float32(m) is exact."""
    return ((magnitudes.float().view(torch.int32) >> 23) - 126).clamp_(min=ZERO)


def _on_device(bits: Tensor) -> Tensor:
    """As `_on_host`, waiting for nothing."""
    magnitudes = bits & _MAGNITUDE
    field = magnitudes >> 23
    normal = field + (_FIRST_NORMAL - 1) + (magnitudes > _INF_BITS)
    index = torch.where(field > 0, normal, _small_index(magnitudes)).long()
    counts = torch.zeros(BINS + 1, dtype=torch.int64, device=bits.device)
    counts.scatter_add_(0, index, torch.ones_like(index))
    counts[BINS] = magnitudes.max()
    return counts
