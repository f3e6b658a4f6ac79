"""Row i of a sweep is the replay of rule i."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import Rule, init, replay, update
from ampsim.core.machine import Arithmetic
from ampsim.core.quirks import StreakStartsAt
from ampsim.jax import sweep
from tests.core.helpers import rules
from tests.examples import examples

BATCH, STEPS = 8, 40


@st.composite
def batches(draw: st.DrawFn) -> list[Rule]:
    return [draw(rules()).replace(delay=2) for _ in range(BATCH - 1)] + [
        # A division, so that all have long factors; its first quotient is a tie in double, which a short one misses.
        Rule(38 * 2.0**-149, 4 / 3, 3 / 4, arithmetic=Arithmetic(backoff="divide"), delay=2)
    ]


@settings(max_examples=examples(ms=50))
@given(batches(), st.integers(0, 2**32 - 1))
def test_sweep_rows_equal_replay(batch, seed) -> None:
    rng = np.random.default_rng(seed)
    found = rng.random((BATCH, STEPS)) < 0.3
    thresholds = 2.0 ** rng.uniform(-10, 20, STEPS)
    thresholds[rng.random(STEPS) < 0.2] = rng.choice(
        [0.0, -1.0, math.inf, math.nan, 1e-45, 65536.0, 0.1]
    )
    scales, capped = (
        np.asarray(x, np.float64)
        for x in (sweep(batch, found), sweep(batch, thresholds=thresholds))
    )
    end = sweep(batch, found, summary=True)
    for i, rule in enumerate(batch):
        assert scales[i].tolist() == replay(rule, found[i]).tolist()
        state = init(rule)
        assert capped[i].tolist() == [
            (state := update(rule, state, state.scale > c)).scale for c in thresholds
        ]
    assert np.asarray(end.scale, np.float64).tolist() == scales[:, -1].tolist()
    assert end.skipped.tolist() == found.sum(axis=1).tolist()


@pytest.mark.parametrize(
    ("threshold", "skipped"),
    [(65536.0, 0), (65536.0 - 2.0**-20, 1), (65535.0, 1), (math.nan, 0), (-0.0, 1), (-1.0, 1)],
)
def test_threshold_is_compared_as_double(threshold, skipped) -> None:
    assert sweep([Rule()], thresholds=[threshold], summary=True).skipped.tolist() == [skipped]


def test_flag_is_read_by_truth_value() -> None:
    assert sweep(iter([Rule()]), [math.nan, -1.0, 0.0], summary=True).skipped.tolist() == [2]


def test_float64_rules() -> None:
    with jax.enable_x64(True):
        rule = Rule(3.0, 3.0, 1 / 3, 2, arithmetic=Arithmetic(dtype="float64", backoff="divide"))
        found = np.arange(50) % 3 > 0
        expected = replay(rule, found)
        thresholds = np.array([rule.init_scale, *expected[:-1]]) * np.where(
            found, 1 - 2.0**-52, 1.0
        )
        assert np.asarray(sweep([rule], thresholds=thresholds))[0].tolist() == expected.tolist()
        for first in (2.0**-126, 2.0**-1021):
            flushes = Rule(first, arithmetic=Arithmetic(dtype="float64", flush_subnormals=True))
            assert (
                np.asarray(sweep([flushes], [True] * 2))[0].tolist()
                == replay(flushes, [True] * 2).tolist()
            )


def test_summary_contains_final_trackers() -> None:
    end = sweep([Rule(growth_interval=100, hysteresis=3)], [1, 1, 0, 0, 0, 0], summary=True)
    assert (end.growth_tracker.tolist(), end.overflow_tracker.tolist()) == ([4], [2])


@pytest.mark.parametrize(
    ("rules", "given", "shown"),
    [
        ([], {"found_inf": [True]}, "expected rules that share them"),
        ([Rule(), Rule(delay=1)], {"found_inf": [True]}, "expected rules that share them"),
        ([Rule()], {}, "either found_inf or thresholds"),
        ([Rule()], {"found_inf": [True], "thresholds": [1.0]}, "either found_inf or thresholds"),
        ([Rule()], {"found_inf": ["0", "1"]}, "text"),  # each digit is true
        ([Rule()], {"found_inf": [[True], [False]]}, r"shape \(2, 1\)"),
        ([Rule(quirks=(StreakStartsAt(),))], {"found_inf": [True]}, "StreakStartsAt"),
    ],
)
def test_invalid_sweep_raises(rules, given, shown) -> None:
    with pytest.raises((ValueError, TypeError), match=shown):
        sweep(rules, **given)
