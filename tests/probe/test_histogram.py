"""Counts against numpy's frexp over every bit pattern, and shares against real casts."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ampsim.core.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32, Format, Kind
from ampsim.probe import Histogram
from ampsim.probe import histogram as module
from ampsim.probe.histogram import BINS, INF, NAN, SMALLEST, ZERO, exponent_counts, merge_counts

EVERY_16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
POWERS = st.integers(-40, 40)
CASTS = (FP16, BF16, E5M2, E4M3)


def reference(values: torch.Tensor) -> tuple[np.ndarray, float]:
    """Counts and the largest magnitude by float64's frexp."""
    wide = values.detach().reshape(-1).to(torch.float64).numpy()
    finite = wide[np.isfinite(wide) & (wide != 0)]
    counts = np.zeros(BINS, np.int64)
    np.add.at(counts, np.frexp(finite)[1] - 1 - SMALLEST + 1, 1)
    counts[[ZERO, INF, NAN]] = (wide == 0).sum(), np.isinf(wide).sum(), np.isnan(wide).sum()
    return counts, float(np.abs(wide).max(initial=0.0))


def check(values: torch.Tensor) -> None:
    counts, largest = reference(values)
    histogram = Histogram.of(values)
    np.testing.assert_array_equal(histogram.counts, counts)
    np.testing.assert_equal(histogram.largest, largest)
    assert histogram.size == values.numel()


def random_bits(seed: int, size: int) -> torch.Tensor:
    bits = np.random.default_rng(seed).integers(0, 2**32, size, dtype=np.uint32)
    return torch.from_numpy(bits.view(np.float32).copy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_pattern(dtype: torch.dtype) -> None:
    values = EVERY_16.view(dtype)
    check(values)
    for value in values.split(257):  # without inf and NaN in most parts, so that `largest` is compared
        check(value)


@pytest.mark.parametrize("size", [1, 1000, 2047, 2048, 2**17 - 1, 2**17, 2**17 + 1, 2**18 + 3, 2**19 + 2**17])
def test_random_float32_bit_patterns(size: int) -> None:
    check(random_bits(size, size))


@pytest.mark.parametrize("exponent", [-149, -140, -126, -30, 0, 1, 127])
def test_sizes_around_the_switch_of_method(exponent: int) -> None:
    one = math.ldexp(1.0, exponent)
    for size in (2046, 2048, 2**17 - 1, 2**17, 2**17 + 1, 2**18 + 2):
        check(torch.full((size,), -one))
        check(torch.tensor([one, -one / 2]).repeat(size // 2))


@given(st.lists(st.floats(width=32), max_size=40))
@example([])
@example([0.0, -0.0])
@example([math.nan, math.inf])
@example([2.0**-149, -(2.0**-127), 2.0**-126])
def test_any_float32(values: list[float]) -> None:
    check(torch.tensor(values, dtype=torch.float32))


def test_any_layout() -> None:
    base = torch.randn(6, 8, 4, 4) * 1e-3
    for view in (base.contiguous(memory_format=torch.channels_last), base.transpose(0, 1), base[::2, 1::3]):
        check(view)
    check(torch.tensor(0.25).expand(3, 5))
    check(torch.tensor(3.0, requires_grad=True))
    check(torch.zeros(0, 4))


def test_another_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match=r"float64: expected float32, float16 or bfloat16; pass values.float()"):
        Histogram.of(torch.zeros(1, dtype=torch.float64))


def test_subnormals_are_counted_when_the_cpu_reads_them_as_zero() -> None:
    values = torch.cat([random_bits(1, 4096) * 0, torch.arange(-4096, 4096, dtype=torch.int32).view(torch.float32)])
    counts, _ = reference(values)
    sixteen = EVERY_16.view(torch.bfloat16)
    counts_16, _ = reference(sixteen)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU keeps subnormals")
    try:
        flushing = Histogram.of(values).counts, Histogram.of(sixteen).counts
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(flushing[0], counts)
    np.testing.assert_array_equal(flushing[1], counts_16)


@pytest.mark.parametrize("size", [1, 100, 2**17])
def test_the_path_of_devices_counts_the_same(size: int) -> None:
    for values in (random_bits(size, size), EVERY_16.view(torch.float16).float(), torch.zeros(3), -torch.ones(3)):
        bits = values.view(torch.int32)
        assert torch.equal(module._on_device(bits), module._on_host(bits))


def test_the_path_of_devices_waits_for_nothing() -> None:
    """Without memory there is nothing that a host could read."""
    bits = torch.empty(100, dtype=torch.int32, device="meta")
    assert module._on_device(bits).shape == (BINS + 1,)


@given(st.lists(st.floats(width=32), max_size=8), st.lists(st.floats(width=32), max_size=8))
@example([1.0], [math.nan])
@example([math.nan], [math.inf])
def test_parts_add_up(a: list[float], b: list[float]) -> None:
    one, two = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
    both = Histogram.of(torch.cat([one, two]))
    added = Histogram.of(one) + Histogram.of(two)
    merged = Histogram.from_counts(merge_counts(exponent_counts(one), exponent_counts(two)).numpy())
    for sum_ in (added, merged):
        np.testing.assert_array_equal(sum_.counts, both.counts)
        np.testing.assert_equal(sum_.largest, both.largest)


@given(st.integers(0, 2**32 - 1), POWERS)
def test_a_power_of_two_moves_the_histogram(seed: int, exponent: int) -> None:
    values = torch.from_numpy(np.random.default_rng(seed).normal(0, 1, 64).astype(np.float32))
    moved, direct = Histogram.of(values).times_power(exponent), Histogram.of(values * 2.0**exponent)
    np.testing.assert_array_equal(moved.counts, direct.counts)
    assert moved.largest == direct.largest


def test_what_leaves_the_range_stays_in_the_last_binade() -> None:
    histogram = Histogram.of(torch.tensor([2.0**-149, 0.0, 2.0**127, math.inf, math.nan]))
    for exponent in (-300, 300):
        moved = histogram.times_power(exponent)
        assert moved.counts[[ZERO, INF, NAN]].tolist() == [1, 1, 1]
        assert moved.counts[1 if exponent < 0 else INF - 1] == 2


def actual(values: torch.Tensor, scale: float, fmt: Format) -> dict[str, float]:
    """Shares by casting every element; the product is exact in float64."""
    kinds = np.bincount(fmt.classify(values.double().numpy() * scale), minlength=len(Kind))
    nonzero = max(len(values) - int(kinds[Kind.ZERO]), 1)
    lost = {"flushed": Kind.FLUSHED, "subnormal": Kind.SUBNORMAL, "overflowed": Kind.OVERFLOWED}
    return {name: int(kinds[kind]) / nonzero for name, kind in lost.items()}


def check_lost(values: torch.Tensor, scale: float, fmt: Format) -> None:
    lost = Histogram.of(values).lost(scale, fmt)
    for name, share in actual(values, scale, fmt).items():
        low, high = getattr(lost, name)
        assert low <= share <= high, (name, share)


@pytest.mark.parametrize("fmt", CASTS, ids=lambda fmt: fmt.name)
def test_shares_bound_what_a_cast_does_to_every_fp16_number(fmt: Format) -> None:
    for values in (EVERY_16.view(torch.float16).float(), torch.exp2(torch.arange(-149, 128).float())):
        for scale in (2.0**-30, 2.0**-9, 0.3, 1.0, 3.0, 2.0**7, 2.0**16):
            check_lost(values, scale, fmt)


@given(st.lists(st.floats(width=32), max_size=20), st.floats(2**-30, 2**30), st.sampled_from(FORMATS))
@example([65519.0], 1.0, FP16)
@example([65520.0, 1.0], 1.0, FP16)
@example([464.0], 1.0, E4M3)
@example([465.0], 1.0, E4M3)
@example([256.0, 300.0], 1.76, E4M3)
@example([256.0, 300.0], 464 / 256, E4M3)
@example([2.0**-25, 2.0**-24], 1.0, FP16)
@example([2.0**127, 2.0**-149], 2.0, FP32)
def test_shares_bound_what_a_cast_does(values: list[float], scale: float, fmt: Format) -> None:
    check_lost(torch.tensor(values, dtype=torch.float32), scale, fmt)


@given(st.integers(0, 2**32 - 1), st.sampled_from(CASTS), POWERS)
def test_flushed_is_exact_but_for_exact_powers_of_two(seed: int, fmt: Format, exponent: int) -> None:
    """Random mantissas, so that no element is a power of two: the lower bound is the number."""
    random = np.random.default_rng(seed)
    values = torch.from_numpy(np.ldexp(random.uniform(1.001, 1.999, 500), random.integers(-60, 20, 500))).float()
    lost = Histogram.of(values).lost(2.0**exponent, fmt)
    assert lost.flushed.low == actual(values, 2.0**exponent, fmt)["flushed"]


def test_bounds_are_no_wider_than_the_binades_that_a_limit_cuts() -> None:
    """One element a binade, at 1.5 times its power: each fp16 limit at scale 1 cuts one binade."""
    values = 1.5 * torch.exp2(torch.arange(-40, 21).float())
    assert [round((high - low) * len(values)) for low, high in Histogram.of(values).lost(1.0, FP16)] == [1, 2, 1]
    inside = 1.5 * torch.exp2(torch.tensor([-30.0, -20.0, 0.0, 17.0]))
    assert [*Histogram.of(inside).lost(1.0, FP16)] == [(0.25, 0.25)] * 3
    assert Histogram.of(torch.tensor([65520.0, 1.0])).lost(1.0, FP16).overflowed == (0.5, 0.5)
    assert Histogram.of(torch.tensor([65519.0, 1.0])).lost(1.0, FP16).overflowed == (0.0, 0.0)


def test_real_casts_of_torch() -> None:
    """fp16 by torch itself instead of numpy, over scales."""
    values = torch.randn(20_000) * 2.0**-20 * torch.exp2(torch.randint(-12, 12, (20_000,)))
    histogram = Histogram.of(values)
    for exponent in range(-20, 40):
        cast = (values * 2.0**exponent).half()
        lost = histogram.lost(2.0**exponent, FP16)
        assert lost.flushed.low == int((cast == 0).sum()) / len(values)
        assert lost.overflowed.low <= int(cast.isinf().sum()) / len(values) <= lost.overflowed.high


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=9), st.sampled_from(FORMATS))
@example([65519.996], FP16)
@example([-65520.0], FP16)
@example([464.0], E4M3)
@example([2.0**-149], E5M2)
def test_the_ceiling_is_the_last_power_of_two_that_fits(values: list[float], fmt: Format) -> None:
    array = np.array(values, np.float32).astype(np.float64)
    ceiling = Histogram.of(torch.tensor(values, dtype=torch.float32)).ceiling(fmt)
    if not array.any():
        assert ceiling == math.inf
        return
    assert np.isfinite(fmt.round(array * ceiling).astype(np.float64)).all()
    assert not np.isfinite(fmt.round(array * (2 * ceiling)).astype(np.float64)).all()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_scale_helps_inf_and_nan(value: float) -> None:
    assert Histogram.of(torch.tensor([1.0, value])).ceiling(FP16) == 0.0


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_is_a_positive_number(scale: float) -> None:
    with pytest.raises(ValueError, match="expected a positive number"):
        Histogram.of(torch.ones(1)).lost(scale, FP16)


def test_ml_dtypes_bfloat16_is_torchs() -> None:
    """The reference of the bf16 rows above, against a third implementation."""
    bits = EVERY_16.numpy().view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(Histogram.of(EVERY_16.view(torch.bfloat16)).counts, reference(torch.tensor(bits))[0])
