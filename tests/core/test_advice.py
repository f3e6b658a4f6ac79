"""The advice keeps the promises that the theorems allow, for any run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampsim.core.advice import advise, measure
from ampsim.core.machine import Rule
from ampsim.core.replay.thresholds import replay_thresholds
from ampsim.core.theory import critical_bad_rate, recovery, skip_rate

steps = st.integers(1, 10**7)
rates = st.floats(0, 0.249)  # at a growth interval of 1, the critical rate is a half


@given(steps, rates)
def test_bad_steps_stay_below_half_critical(steps: int, rate: float) -> None:
    assert 2 * rate <= critical_bad_rate(advise(steps, rate)) * (1 + 1e-9)


@given(steps)
def test_ten_bits_recover_within_tenth(steps: int) -> None:
    rule = advise(steps)
    if steps >= 5000:
        assert recovery(rule, 10, 10).steps <= steps / 10 + 10
    assert skip_rate(rule) < 0.02


@given(st.floats(2.0**-20, 2.0**40), st.sampled_from([1, 8, 512]))
def test_start_costs_at_most_one_skip(threshold: float, ranks: int) -> None:
    rule = advise(1000, 0.0, ranks, threshold=threshold)
    done = replay_thresholds(rule, np.full(40, threshold / ranks))
    assert done.skipped.tolist() in ([], [0])
    assert rule.init_scale >= threshold / ranks  # never so low that it has to climb


def test_bad_steps_leave_scale_usable() -> None:
    generator = np.random.default_rng(0)
    thresholds = 2.0 ** generator.normal(20, 0.5, 50_000)
    thresholds[generator.random(50_000) < 0.005] = 0
    measured = measure(thresholds)
    assert measured.bad_rate == np.mean(thresholds == 0)
    assert thresholds[thresholds > 0].min() == measured.lowest
    rule = advise(
        50_000, measured.bad_rate, threshold=measured.threshold, lowest=measured.lowest
    )
    unused = [
        np.log2(thresholds[thresholds > 0]).mean()
        - replay_thresholds(machine, thresholds).mean_log2_scale
        for machine in (rule, Rule())
    ]
    assert unused[0] < 4
    assert unused[1] > 15  # torch's defaults let the scale fall


def test_nan_thresholds_are_bad_steps() -> None:
    measured = measure([2.0**16, np.nan, 0.0, 2.0**14])
    assert measured == (0.5, 2.0**15 + 2.0**13, 2.0**14)


def test_ranks_lower_both_scales() -> None:
    one, many = (
        advise(1000, 0.01, ranks, threshold=2.0**20, lowest=2.0**12)
        for ranks in (1, 64)
    )
    assert (one.init_scale, one.min_scale) == (2.0**20, 2.0**12)
    assert (many.init_scale, many.min_scale) == (2.0**14, 2.0**6)


@given(steps, st.floats(0.0, 30.0))
def test_larger_gradients_still_fit_later(length: int, drop: float) -> None:
    rule = advise(length, threshold=2.0**20, lowest=2.0**18)
    done = replay_thresholds(rule, np.full(40, 2.0 ** (20 - drop)))
    assert done.state.scale <= 2.0 ** (21 - drop)


@pytest.mark.parametrize(
    "arguments", [(0,), (1.5,), (10, 0.5), (10, -0.1), (10, 0.0, 0)]
)
def test_invalid_arguments_raise(arguments: tuple) -> None:
    with pytest.raises((TypeError, ValueError), match="expected"):
        advise(*arguments)


def test_step_below_scale_one_is_bad() -> None:
    assert measure([1.5, 1.0, 0.9, 0.0]).bad_rate == 0.5


def test_run_of_bad_steps_raises() -> None:
    with pytest.raises(ValueError, match="no scale fits"):
        measure(np.zeros(3))
