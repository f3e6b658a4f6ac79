"""The number formats that gradients pass through: limits, rounding, and the scale-round-unscale
chain.

A format with p - 1 stored mantissa bits and smallest normal 2^emin holds the magnitudes

    m * 2^(e - (p-1)),   0 <= m < 2^p,   e >= emin,   up to max_finite,

and rounds to the nearest of them, ties to even. numpy does the arithmetic of fp16, ml_dtypes that
of bfloat16 and the two fp8 formats; the limits below do not come from either of them, but from IEEE
754-2019 (fp16, fp32), from fp32 cut to 8 significant bits (bf16), and from "FP8 Formats for Deep
Learning" (arXiv:2209.05433, table 1).

>>> FP16.scaled_round([1e-8, 1.0, 70000.0], scale=1.0).tolist()
[0.0, 1.0, inf]
"""

import enum
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt


class Kind(enum.IntEnum):
    """What a cast to a format does to a value."""

    ZERO = 0  # it was zero
    FLUSHED = 1  # nonzero, rounded to zero: underflow
    SUBNORMAL = 2  # below the smallest normal: fewer significant bits
    NORMAL = 3
    OVERFLOWED = 4  # not finite after the cast, as a non-finite check sees it; inf and NaN included


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with subnormals.

    All limits are magnitudes, as Python floats.
    """

    name: str
    type_name: str
    """Name of the dtype in numpy, or in ml_dtypes, which is imported on first use."""
    mantissa_bits: int
    """Stored bits of the mantissa, p - 1."""
    min_exponent: int
    """emin: the smallest normal is 2^emin."""
    max_finite: float
    has_inf: bool
    """Whether an overflow rounds to inf. In E4M3 ("fn") it becomes NaN, and so does inf itself."""

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """The array dtype of this format."""
        if hasattr(np, self.type_name):
            return np.dtype(self.type_name)
        import ml_dtypes

        made: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, self.type_name))
        return made

    @property
    def smallest_normal(self) -> float:
        """The smallest magnitude with all p bits of precision."""
        # 2^emin
        return 2.0**self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest magnitude above zero.

        Half of it, and any smaller magnitude, is flushed to zero.
        """
        # 2^(emin - (p-1))
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def overflow_threshold(self) -> float:
        """The midpoint between `max_finite` and the number that would follow it.

        Values above it overflow; values below it round to `max_finite`. The midpoint itself rounds
        to the even mantissa: it overflows in every format with an inf (fp16: 65520), and stays
        finite in E4M3 (464 becomes 448).
        """
        # max + ulp(max) / 2,  ulp(x) = 2^(floor(log2 x) - (p-1))
        return self.max_finite + 2.0 ** (
            math.frexp(self.max_finite)[1] - 2 - self.mantissa_bits
        )

    def round(self, x: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """Round values to this format.

        Rounds once, to nearest, ties to even; subnormals are kept. An overflow becomes inf with its
        sign, or NaN if the format has no inf.

        Args:
            x: Values of any shape; dtypes other than float16 and float32 are converted to float64
                first.

        Returns:
            Array of the same shape, of dtype `dtype`.
        """
        wide = np.asarray(x)
        # A signalling NaN is "invalid" in any cast.
        with np.errstate(over="ignore", invalid="ignore"):
            if wide.dtype not in (np.float16, np.float32):
                wide = wide.astype(np.float64)
                if self.dtype not in (np.float16, np.float32):
                    # ml_dtypes goes from float64 through float32, rounding twice.
                    wide = _round_to_odd(wide)
            return wide.astype(self.dtype)

    def classify(self, x: npt.ArrayLike) -> npt.NDArray[np.uint8]:
        """Return the `Kind` of each value after a cast to this format.

        ``np.bincount(FP16.classify(g).ravel(), minlength=len(Kind))`` counts them.

        Args:
            x: Values of any shape; dtypes as in `round`.

        Returns:
            Array of the same shape, of dtype uint8.
        """
        with np.errstate(invalid="ignore"):
            was_zero = np.asarray(x) == 0
            cast = np.abs(self.round(x).astype(np.float64))
        kinds = np.full(cast.shape, Kind.NORMAL, dtype=np.uint8)
        kinds[cast < self.smallest_normal] = Kind.SUBNORMAL
        kinds[cast == 0] = Kind.FLUSHED
        kinds[was_zero] = Kind.ZERO
        kinds[~np.isfinite(cast)] = Kind.OVERFLOWED
        return kinds

    def scaled_round(
        self, x: npt.ArrayLike, scale: npt.ArrayLike
    ) -> npt.NDArray[np.float32]:
        """Scale gradients, round them to this format, and unscale them in float32.

        The product of two float32 numbers is exact in float64, so each gradient is rounded once.
        This is the best case: a real backward pass also rounds its intermediate results. The
        unscale is torch's (``torch/amp/grad_scaler.py``, ``_unscale_grads_``): a multiplication by
        the float32 reciprocal. At scales of 2^-128 and below, the reciprocal is inf, as in torch.

        Args:
            x: Unscaled gradients of any shape; exact if float32.
            scale: Loss scale, a float32 number as in ``State.scale``; broadcast against `x`.

        Returns:
            Array of the broadcast shape, of dtype float32; not finite where the scaled gradient
            overflows.
        """
        factor = np.asarray(scale, dtype=np.float64)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            # f32( round(S x) * f32(1 / S) )
            reciprocal = (1.0 / factor).astype(np.float32)
            scaled = self.round(np.asarray(x, dtype=np.float64) * factor)
            return np.asarray(scaled.astype(np.float32) * reciprocal, dtype=np.float32)


def binade(value: float) -> int | None:
    """Return k if a value is 2^k; None if it is no power of two."""
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else None


def far_power(value: float, far: int) -> str | None:
    """Return ``2**k`` as text if a value is 2^k with abs(k) >= far, else None."""
    k = binade(value)
    return None if k is None or abs(k) < far else f"2**{k}"


def _round_to_odd(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round to float32 by truncation, with the last bit set where anything was cut off.

    A later rounding to a format of p <= 22 bits then equals the direct one (Boldo and Melquiond,
    "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE
    TC 57(4), 2008).
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = x.astype(np.float32)
    away = np.abs(near).astype(np.float64) > np.abs(x)
    truncated = np.where(away, np.nextafter(near, np.float32(0)), near)
    cut_off = truncated.astype(np.float64) != x
    return np.asarray(
        (truncated.view(np.uint32) | cut_off.astype(np.uint32)).view(np.float32)
    )


FP16 = Format("fp16", "float16", 10, -14, 65504.0, has_inf=True)
BF16 = Format("bf16", "bfloat16", 7, -126, (2 - 2.0**-7) * 2.0**127, has_inf=True)
E5M2 = Format("e5m2", "float8_e5m2", 2, -14, 57344.0, has_inf=True)
E4M3 = Format("e4m3", "float8_e4m3fn", 3, -6, 448.0, has_inf=False)
FP32 = Format("fp32", "float32", 23, -126, (2 - 2.0**-23) * 2.0**127, has_inf=True)

FORMATS = (FP16, BF16, E5M2, E4M3, FP32)
