"""A sweep over policies equals the fold of each one by one."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import Rule, replay_ceilings
from ampsim.core.policies import Deduplicated, FloorSchedule, Headroom, LogMax, Probe, Ratio
from ampsim.jax import sweep_policies
from ampsim.jax.sweep import _differing
from tests.examples import examples

STEPS = 30
few = settings(max_examples=examples(ms=50))  # each compiles a grid, or many folds
ceiling = st.sampled_from([0.0, math.inf, 2.0**16, 2.0**16 * (1 - 2.0**-30)]) | st.integers(-4, 24).map(
    lambda e: 2.0**e
)
traces = st.lists(ceiling | st.floats(0.5, 1e7), min_size=STEPS, max_size=STEPS)
GRIDS: dict[str, list[Any]] = {
    "deduplicated": [Deduplicated(growth_interval=g, backoff_factor=b, delay=1) for g in (1, 3) for b in (0.5, 0.3)],
    "probe": [Probe(growth_interval=g, growth_factor=f, delay=2) for g in (1, 2, 5) for f in (2.0, 1.5)],
    "ratio": [Ratio(growth_interval=g, max_scale=m) for g in (1, 4) for m in (2.0**17, 2.0**20)],
    "headroom": [Headroom(margin=m, interval=i) for m in (0, 1, 5, 12) for i in (1, 3)],
    "floor": [FloorSchedule(growth_interval=g, milestones=((4, 2.0**9),)) for g in (1, 2)],
    "alike": [Probe(growth_interval=2)] * 2,
}


@few
@given(st.sampled_from(sorted(GRIDS)), traces)
@example("headroom", [2.0**20] * STEPS)
@example("probe", [2.0**17, 0.0] * (STEPS // 2))
def test_each_row_is_the_fold(name: str, trace: list[float]) -> None:
    for row, policy in zip(np.asarray(sweep_policies(GRIDS[name], trace)), GRIDS[name], strict=True):
        assert row.tolist() == replay_ceilings(policy, trace).scales().tolist()


@few
@given(traces)
def test_a_summary_is_of_the_rows(trace: list[float]) -> None:
    short = sweep_policies(GRIDS["probe"], trace, summary=True)
    for i, policy in enumerate(GRIDS["probe"]):
        alone = replay_ceilings(policy, trace)
        assert (short.scale[i], short.skipped[i]) == (alone.state.scale, len(alone.skipped))
        assert float(short.mean_log2_scale[i]) == pytest.approx(alone.mean_log2_scale, rel=1e-5)


def test_logmax_agrees_to_a_tenth_of_a_bit() -> None:
    random = np.random.default_rng(0)
    trace = 2.0 ** random.normal(20, 1, 300)
    policies = [LogMax(overflow_std_dev=z) for z in (2.0, 3.09)]
    for row, policy in zip(np.asarray(sweep_policies(policies, trace)), policies, strict=True):
        np.testing.assert_allclose(np.log2(row), np.log2(replay_ceilings(policy, trace).scales()), atol=0.1)


def test_each_policy_may_have_a_trace_of_its_own() -> None:
    policies = GRIDS["deduplicated"]
    traces = 2.0 ** np.random.default_rng(1).normal(16, 2, (len(policies), 50))
    for row, policy, trace in zip(np.asarray(sweep_policies(policies, traces)), policies, traces, strict=True):
        assert row.tolist() == replay_ceilings(policy, trace).scales().tolist()


@pytest.mark.parametrize(
    ("policies", "ceilings", "message"),
    [
        ([], [1.0], r"\[\]: expected one or more policies"),
        ([Rule()], [1.0], "expected one or more policies"),
        ([Probe(), Headroom()], [1.0], "types Headroom, Probe: expected one type"),
        ([Probe(), Probe(delay=1)], [1.0], "delay is 0 and others"),
        ([LogMax(), LogMax(faithful=True)], [1.0], "faithful is False and others"),
        ([Probe()], [], r"shape \(0,\): expected"),
        ([Probe()], [[1.0], [2.0]], r"shape \(2, 1\): expected \(steps,\) or \(1, steps\)"),
        ([Probe()], [1.0, math.nan], r"ceilings\[\(1,\)\]=nan: expected numbers >= 0"),
        ([Probe()], [-1.0], r"ceilings\[\(0,\)\]=-1.0"),
    ],
)
def test_bad_input(policies: list[Any], ceilings: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        sweep_policies(policies, ceilings)


def test_the_largest_gradient_is_of_the_format_that_is_told() -> None:
    policies, trace = GRIDS["headroom"], [2.0**20, 2.0**9, 2.0**13] * (STEPS // 3)
    rows = np.asarray(sweep_policies(policies, trace, top=448.0)).tolist()
    assert rows == [replay_ceilings(policy, trace, top=448.0).scales().tolist() for policy in policies]
    assert rows[0] != replay_ceilings(policies[0], trace).scales().tolist()


def test_whole_numbers_are_swept_as_whole_numbers() -> None:
    """float32 holds none that is odd beyond 2^24."""
    intervals = [2**24, 2**24 + 1]
    numbers = _differing([Probe(growth_interval=interval) for interval in intervals])
    assert numbers["growth_interval"].tolist() == intervals
