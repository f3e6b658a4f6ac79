"""The batch is the machine bit for bit, and the theorems hold."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.core import theory
from ampsim.core.machine import Arithmetic, Rule, State, init, update
from experiments import theory as experiment
from experiments import theory_real
from experiments.theorems import pathwise, simulate, stochastic
from experiments.theorems.case import EXACT
from experiments.theorems.simulate import Batch
from figures import results
from tests.examples import examples

rules = st.builds(
    Rule,
    st.sampled_from([2.0**16, 1.0, 3.0, 2.0**-120, 2.0**127, 2.0**-140]),
    st.sampled_from([2.0, 1.5, 1.1, 1.0, 2.0**100]),
    st.sampled_from([0.5, 0.8, 1.0, 2.0**-90]),
    st.integers(1, 4),
    arithmetic=st.sampled_from([Arithmetic(), Arithmetic(dtype="float64")]),
    min_scale=st.none() | st.sampled_from([0.5, 0.3]),
    max_scale=st.none() | st.sampled_from([5.0, 2.0**20]),
)


def bits(x: float) -> bytes:
    return np.float64(x).tobytes()


@settings(max_examples=examples(ms=2))
@given(
    rules,
    st.integers(1, 3).flatmap(
        lambda size: st.lists(st.tuples(*[st.booleans()] * size), min_size=1)
    ),
)
def test_batch_matches_reference_bit_for_bit(rule: Rule, flags: list[tuple[bool, ...]]) -> None:
    size = len(flags[0])
    batch, states = Batch(rule, size), [init(rule)] * size
    for found in flags:
        batch.update(np.array(found))
        states = [update(rule, state, flag) for state, flag in zip(states, found, strict=True)]
        assert [bits(x) for x in batch.scale] == [bits(state.scale) for state in states]
        assert batch.tracker.tolist() == [state.growth_tracker for state in states]


@pytest.mark.parametrize(
    ("rule", "found", "scale"),
    [
        (Rule(2.0**127, growth_interval=1), False, 2.0**127),  # a growth to inf is refused
        (Rule(2.0**127, growth_interval=1, max_scale=2.0**127), False, 2.0**127),
        (Rule(2.0**-149), True, 0.0),
        (Rule(3.0, 1.5, growth_interval=1, max_scale=4.0), False, 4.0),
        (Rule(3.0, min_scale=2.0), True, 2.0),
    ],
)
def test_batch_matches_reference_at_limits(rule: Rule, found: bool, scale: float) -> None:
    batch = Batch(rule, 1)
    batch.update(np.array([found]))
    assert batch.scale[0] == update(rule, init(rule), found).scale == scale


@pytest.mark.parametrize(
    "rule",
    [
        Rule(hysteresis=2),
        Rule(delay=1),
        Rule(growth_test=">="),
        Rule(arithmetic=Arithmetic(flush_subnormals=True)),
    ],
)
def test_unsupported_batch_rule_raises(rule: Rule) -> None:
    with pytest.raises(ValueError, match="expected torch's arithmetic"):
        Batch(rule, 3)


def test_threshold_run_matches_expected_scales() -> None:
    found, x = simulate.follow(Rule(8.0, growth_interval=2), [4.0, 4.0, 4.0, 8.0, 8.0])
    assert found.tolist() == [True, False, False, False, False]
    assert x.tolist() == [3, 2, 2, 3, 3]


def test_simulated_waste_matches_theory() -> None:
    rule, seen = Rule(2.0**16, growth_interval=3, arithmetic=Arithmetic(dtype="float64")), []

    class Spy(Batch):
        def update(self, found_inf: Any) -> None:
            seen.append(found_inf.copy())
            super().update(found_inf)

    original, pathwise.Batch = pathwise.Batch, Spy
    try:
        skipped, descent, wasted = pathwise.histories(rule, 300, 50, np.random.default_rng(0))
    finally:
        pathwise.Batch = original
    flags = np.array(seen).T
    assert flags.sum(axis=1).tolist() == skipped.tolist()
    assert [theory.wasted(row, 3) for row in flags] == wasted.tolist()
    for row, bits_down in zip(flags[:30], descent, strict=False):
        state = State(2.0**16)
        for flag in row:
            state = update(rule, state, bool(flag))
        assert 16 - math.log2(state.scale) == bits_down


def test_exact_theorems_hold_on_fresh_runs() -> None:
    for arm, hold in experiment.CASES.items():
        for held in hold(experiment.SMOKE, np.random.default_rng(9)):
            if held.tolerance <= EXACT:
                assert held.error <= held.tolerance, (arm.name, held)


def test_recorded_errors_stay_within_tolerance() -> None:
    rows = results.load("theory").records
    assert {row["theorem"].split()[0] for row in rows} == {f"T{n}" for n in range(1, 11)}
    for row in rows:
        for held in row["held"]:
            assert held["error"] <= held["tolerance"] <= 0.2, (row["arm"], held)


def test_chain_shares_sum_to_one() -> None:
    p = np.array([0.1, 0.5, 1.0])
    shares = stochastic.chain(p, 2, 1)
    assert shares.sum() == pytest.approx(1)
    assert shares[2, 1] == 0  # the third level always overflows


# ------------------------------------------------------------------------------------------------------ a real run


def test_record_counts_match_steps() -> None:
    log = [
        (2.0**16, 1.0, False, 0.5),
        (2.0**15, 1.0, True, 0.5),
        (2.0**16, 0.99, True, 0.5),
        (2.0**15, 3.0, True, 2),
    ]
    row = theory_real.record(log, 1)
    assert row["scales"] == [[15, 2], [16, 2]]
    assert row["thresholds"] == [[15, 2], [16, 1], [14, 1]]
    assert row["skipped"] == 1
    assert row["unforeseen"] == 1  # the last: 3 x 2^15 overflows
    assert row["mean_loss"] == 0.875
    assert row["later_skipped"] == 0
