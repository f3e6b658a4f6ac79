"""Row i of a sweep is the replay of rule i."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import Rule, replay
from ampsim.core.machine import Arithmetic
from ampsim.core.quirks import StreakStartsAt
from ampsim.jax import sweep
from tests.core.helpers import rules
from tests.examples import examples
from tests.jax.helpers import enable_x64

BATCH, STEPS = 8, 40


@st.composite
def batches(draw: st.DrawFn) -> list[Rule]:
    return [draw(rules()).replace(delay=2) for _ in range(BATCH - 1)] + [
        # A division, so that all have long factors; its first quotient is a tie in double, which a
        # short one misses.
        Rule(
            38 * 2.0**-149,
            4 / 3,
            3 / 4,
            arithmetic=Arithmetic(backoff="divide"),
            delay=2,
        )
    ]


@settings(max_examples=examples(ms=50))
@given(batches(), st.integers(0, 2**32 - 1))
def test_sweep_rows_equal_replay(batch, seed) -> None:
    rng = np.random.default_rng(seed)
    found = rng.random((BATCH, STEPS)) < 0.3
    scales, shared = (
        np.asarray(sweep(batch, x), np.float64) for x in (found, found[0])
    )
    end = sweep(batch, found, summary=True)
    for i, rule in enumerate(batch):
        assert scales[i].tolist() == replay(rule, found[i]).tolist()
        assert shared[i].tolist() == replay(rule, found[0]).tolist()
    assert np.asarray(end.scale, np.float64).tolist() == scales[:, -1].tolist()
    assert end.skipped.tolist() == found.sum(axis=1).tolist()


def test_flag_is_read_by_truth_value() -> None:
    assert sweep(
        iter([Rule()]), [math.nan, -1.0, 0.0], summary=True
    ).skipped.tolist() == [2]


def test_float64_rules() -> None:
    with enable_x64(True):
        rule = Rule(
            3.0, 3.0, 1 / 3, 2, arithmetic=Arithmetic(dtype="float64", backoff="divide")
        )
        found = np.arange(50) % 3 > 0
        assert (
            np.asarray(sweep([rule], found))[0].tolist() == replay(rule, found).tolist()
        )
        for first in (2.0**-126, 2.0**-1021):
            flushes = Rule(
                first, arithmetic=Arithmetic(dtype="float64", flush_subnormals=True)
            )
            assert (
                np.asarray(sweep([flushes], [True] * 2))[0].tolist()
                == replay(flushes, [True] * 2).tolist()
            )


def test_summary_contains_final_trackers() -> None:
    end = sweep(
        [Rule(growth_interval=100, hysteresis=3)], [1, 1, 0, 0, 0, 0], summary=True
    )
    assert (end.growth_tracker.tolist(), end.overflow_tracker.tolist()) == ([4], [2])


@pytest.mark.parametrize(
    ("rules", "flags", "shown"),
    [
        ([], [True], "expected rules that share them"),
        ([Rule(), Rule(delay=1)], [True], "expected rules that share them"),
        ([Rule()], ["0", "1"], "text"),  # each digit is true
        ([Rule()], [[True], [False]], r"shape \(2, 1\)"),
        ([Rule(quirks=(StreakStartsAt(),))], [True], "StreakStartsAt"),
    ],
)
def test_invalid_sweep_raises(rules, flags, shown) -> None:
    with pytest.raises((ValueError, TypeError), match=shown):
        sweep(rules, flags)
