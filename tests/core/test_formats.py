"""Every format against numpy and ml_dtypes on all bit patterns, and its rounding against exact
integers.
"""

import functools

import ml_dtypes
import numpy as np
import pytest

from ampsim.core.formats import BF16, E4M3, E5M2, FORMATS, FP16, Format, Kind

SMALL = (FP16, BF16, E5M2, E4M3)
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
each_small_format = pytest.mark.parametrize("fmt", SMALL, ids=lambda f: f.name)


def bit_patterns(fmt: Format) -> np.ndarray:
    """All 256 or 65,536 values of a format, both zeros and every NaN (the signalling ones too)
    included.
    """
    width = fmt.dtype.itemsize
    return np.arange(2 ** (8 * width), dtype=f"uint{8 * width}").view(fmt.dtype)


def widened(values: np.ndarray, dtype: type = np.float64) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # the hardware flags a signalling NaN
        return values.astype(dtype)


def steps(fmt: Format) -> float:
    """Return how many of the smallest subnormal make 1: the format's numbers are integers, times
    that.
    """
    return 2.0 ** (fmt.mantissa_bits - fmt.min_exponent)


@functools.cache
def magnitudes(fmt: Format) -> list[int]:
    """All finite magnitudes from the definition m * 2^(e - mantissa_bits), ascending, in smallest
    subnormals.
    """
    found, exponent, p = [0], 0, fmt.mantissa_bits + 1
    while True:
        low = 1 if exponent == 0 else 2 ** (p - 1)
        binade = [m << exponent for m in range(low, 2**p)]
        found += [x for x in binade if x <= fmt.max_finite * steps(fmt)]
        if binade[-1] >= fmt.max_finite * steps(fmt):
            return found
        exponent += 1


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the last bit, the sign of zero included; any NaN equals any NaN."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(nan | (a.view(np.int64) == b.view(np.int64))))


@each_format
def test_limits_match_numpy_and_ml_dtypes(fmt) -> None:
    theirs = ml_dtypes.finfo(fmt.dtype)
    assert fmt.max_finite == float(theirs.max)
    assert fmt.smallest_normal == float(theirs.tiny)
    assert fmt.smallest_subnormal == float(theirs.smallest_subnormal)
    assert fmt.mantissa_bits == theirs.nmant
    assert fmt.has_inf == bool(np.isinf(np.float32(np.inf).astype(fmt.dtype)))


@each_small_format
def test_format_definition_matches_bit_patterns(fmt) -> None:
    values = widened(bit_patterns(fmt))
    finite = np.abs(values[np.isfinite(values)])
    assert (np.unique(finite) * steps(fmt)).tolist() == magnitudes(
        fmt
    )  # a power of two: exact in a double


@each_small_format
@pytest.mark.parametrize("via", [np.float32, np.float64])
def test_rounding_keeps_representable_values(fmt, via) -> None:
    values = bit_patterns(fmt)
    kept = fmt.round(widened(values, via))
    assert kept.dtype == fmt.dtype
    assert same(widened(kept), widened(values))


@pytest.mark.parametrize(
    ("fmt", "normal", "subnormal", "not_finite"),
    [  # of either sign; fp16 has 30 exponents of 1024 numbers, and the last exponent is inf and NaN
        (FP16, 30 * 2**10, 2**10 - 1, 2**10),
        (BF16, 254 * 2**7, 2**7 - 1, 2**7),
        (E5M2, 30 * 2**2, 2**2 - 1, 2**2),
        (E4M3, 15 * 2**3 - 1, 2**3 - 1, 1),  # "fn": one NaN, no inf
    ],
)
def test_classify_counts_all_bit_patterns(fmt, normal, subnormal, not_finite) -> None:
    counts = np.bincount(fmt.classify(bit_patterns(fmt)), minlength=len(Kind))
    assert counts.tolist() == [2, 0, 2 * subnormal, 2 * normal, 2 * not_finite]


@functools.cache
def rounding_cases(fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """Every midpoint of two neighbours, the doubles just below and above it, and what each must
    become.

    The tie goes to the neighbour whose index is even: neighbours' mantissas alternate in parity,
    and index 0 is zero. Beyond the largest finite number, the neighbour is the number that would
    follow it.
    """
    grid = magnitudes(fmt)
    neighbours = [*grid[1:], grid[-1] + (grid[-1] - grid[-2])]
    sums = [low + high for low, high in zip(grid, neighbours, strict=True)]
    middles = np.array(sums, np.float64) / (2 * steps(fmt))
    assert (middles * (2 * steps(fmt))).tolist() == sums  # exact in a double
    over = np.inf if fmt.has_inf else np.nan
    below, above = (
        np.array(grid, np.float64) / steps(fmt),
        np.array([*grid[1:], over], np.float64) / steps(fmt),
    )
    even = np.arange(len(grid)) % 2 == 0
    points = [np.nextafter(middles, 0.0), middles, np.nextafter(middles, np.inf)]
    return np.stack(points, 1).ravel(), np.stack(
        [below, np.where(even, below, above), above], 1
    ).ravel()


@each_small_format
def test_rounding_is_exact_around_midpoints(fmt) -> None:
    points, expected = rounding_cases(fmt)
    assert len(points) == 3 * len(magnitudes(fmt))
    assert same(fmt.round(points).astype(np.float64), expected)
    middles = points[1::3].astype(np.float32)  # which holds each of them
    assert same(fmt.round(middles).astype(np.float64), expected[1::3])
    negative = fmt.round(-points).astype(np.float64)
    assert same(np.where(np.isnan(negative), np.nan, negative), -expected)


@each_format
def test_rounding_and_classification_of_extremes(fmt) -> None:
    inf = np.inf if fmt.has_inf else np.nan
    x = np.array([0.0, -0.0, 1e-320, -1e-320, 1e300, -1e300, np.inf, -np.inf, np.nan])
    assert same(
        fmt.round(x), np.array([0.0, -0.0, 0.0, -0.0, inf, -inf, inf, -inf, np.nan])
    )
    assert (
        fmt.classify(x).tolist()
        == [Kind.ZERO] * 2 + [Kind.FLUSHED] * 2 + [Kind.OVERFLOWED] * 5
    )


@each_format
def test_overflow_begins_at_threshold(fmt) -> None:
    edge = fmt.overflow_threshold
    assert np.isfinite(np.float64(fmt.round(np.nextafter(edge, 0.0))))
    assert not np.isfinite(np.float64(fmt.round(np.nextafter(edge, np.inf))))
    assert np.isfinite(np.float64(fmt.round(edge))) == (not fmt.has_inf)
    assert (
        FP16.overflow_threshold,
        E5M2.overflow_threshold,
        E4M3.overflow_threshold,
    ) == (
        65520,
        61440,
        464,
    )


@pytest.mark.parametrize("scale", [2.0**-128, 2.0**-149, 0.0])
def test_scale_without_finite_reciprocal_loses_gradients(scale) -> None:
    # torch: 1/S is inf, so a clean step writes inf or NaN (pytorch#99640).
    back = FP16.scaled_round(np.array([1.0, -1.0, 0.0], np.float32), scale)
    assert not np.isfinite(back).any()
