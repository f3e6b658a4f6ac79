"""Shares, thresholds and moved histograms against real casts."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.core.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32, Format, Kind
from ampsim.probe import Histogram
from ampsim.probe.binades import INF, NAN, ZERO
from ampsim.probe.histogram import moved
from tests.examples import examples
from tests.probe.helpers import EVERY_16, same

FEW = settings(max_examples=examples(ms=4))
POWERS = st.integers(-40, 40)
CASTS = (FP16, BF16, E5M2, E4M3)


@FEW
@given(st.integers(0, 2**32 - 1), POWERS)
def test_power_of_two_shifts_histogram(seed: int, exponent: int) -> None:
    values = torch.from_numpy(
        np.random.default_rng(seed).normal(0, 1, 64).astype(np.float32)
    )
    direct = Histogram.of(values * 2.0**exponent)
    same(
        Histogram(moved(Histogram.of(values).counts, exponent), direct.largest), direct
    )


def test_out_of_range_elements_stay_counted() -> None:
    counts = np.ones(INF + 2, np.int64)  # one element in each binade
    for exponent in (-300, -277, -40, 1, 278):
        there = moved(counts, exponent)
        assert there[[ZERO, INF, NAN]].tolist() == [1, 1, 1]
        assert there.sum() == counts.sum()


def actual(values: torch.Tensor, scale: float, fmt: Format) -> dict[str, float]:
    """Shares by casting every element; the product is exact in float64."""
    kinds = np.bincount(
        fmt.classify(values.double().numpy() * scale), minlength=len(Kind)
    )
    nonzero = max(len(values) - int(kinds[Kind.ZERO]), 1)
    lost = {
        "flushed": Kind.FLUSHED,
        "subnormal": Kind.SUBNORMAL,
        "overflowed": Kind.OVERFLOWED,
    }
    return {name: int(kinds[kind]) / nonzero for name, kind in lost.items()}


def check_lost(values: torch.Tensor, scale: float, fmt: Format) -> None:
    lost = Histogram.of(values).lost(scale, fmt)
    for name, share in actual(values, scale, fmt).items():
        low, high = getattr(lost, name)
        assert low <= share <= high, (name, share)


@pytest.mark.parametrize("fmt", CASTS, ids=lambda fmt: fmt.name)
def test_bounds_hold_for_fp16_values(fmt: Format) -> None:
    for scale in (2.0**-30, 0.3, 1.0, 3.0, 2.0**16):
        check_lost(EVERY_16.view(torch.float16).float(), scale, fmt)


@FEW
@given(
    st.lists(st.floats(width=32), max_size=20),
    st.floats(2**-30, 2**30),
    st.sampled_from(FORMATS),
)
@example([65519.0], 1.0, FP16)
@example([65520.0, 1.0], 1.0, FP16)
@example([464.0], 1.0, E4M3)
@example([465.0], 1.0, E4M3)
@example([256.0, 300.0], 1.76, E4M3)
@example([256.0, 300.0], 464 / 256, E4M3)
@example([2.0**-25, 2.0**-24], 1.0, FP16)
@example([2.0**127, 2.0**-149], 2.0, FP32)
def test_bounds_hold_for_generated_values(
    values: list[float], scale: float, fmt: Format
) -> None:
    check_lost(torch.tensor(values, dtype=torch.float32), scale, fmt)


def test_bounds_are_within_one_binade() -> None:
    """One element a binade, at 1.5 times its power: each fp16 limit at scale 1 cuts one binade."""
    values = 1.5 * torch.exp2(torch.arange(-40, 21).float())
    lost = Histogram.of(values).lost(1.0, FP16)
    assert [round((high - low) * len(values)) for low, high in lost] == [1, 2, 1]
    inside = 1.5 * torch.exp2(torch.tensor([-30.0, -20.0, 0.0, 17.0]))
    assert [*Histogram.of(inside).lost(1.0, FP16)] == [(0.25, 0.25)] * 3


@FEW
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=9),
    st.sampled_from(FORMATS),
)
@example([65519.996], FP16)
@example([-65520.0], FP16)
@example([464.0], E4M3)
@example([2.0**-149], E5M2)
def test_threshold_is_largest_fitting_power(values: list[float], fmt: Format) -> None:
    array = np.array(values, np.float32).astype(np.float64)
    threshold = Histogram.of(
        torch.tensor(values, dtype=torch.float32)
    ).overflow_threshold(fmt)
    if not array.any():
        assert threshold == math.inf
        return
    assert np.isfinite(fmt.round(array * threshold).astype(np.float64)).all()
    assert not np.isfinite(fmt.round(array * (2 * threshold)).astype(np.float64)).all()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_threshold_is_zero_for_nonfinite(value: float) -> None:
    assert Histogram.of(torch.tensor([1.0, value])).overflow_threshold(FP16) == 0.0


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_invalid_scale_raises(scale: float) -> None:
    with pytest.raises(ValueError, match=f"scale={scale!r}"):
        Histogram.of(torch.ones(1)).lost(scale, FP16)
