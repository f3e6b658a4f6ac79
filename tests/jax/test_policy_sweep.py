"""A sweep over policies equals the fold of each one by one."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import Rule, replay_thresholds
from ampsim.core.policies import Deduplicated, FloorSchedule, Headroom, Probe, Ratio
from ampsim.jax import sweep_policies
from tests.examples import examples

STEPS = 30
few = settings(max_examples=examples(ms=50))  # each compiles a grid, or many folds
threshold = st.sampled_from([0.0, math.inf, 2.0**16, 2.0**16 * (1 - 2.0**-30)]) | st.integers(
    -4, 24
).map(lambda e: 2.0**e)
traces = st.lists(threshold | st.floats(0.5, 1e7), min_size=STEPS, max_size=STEPS)
GRIDS: dict[str, list[Any]] = {
    "deduplicated": [
        Deduplicated(growth_interval=g, backoff_factor=b, delay=1)
        for g in (1, 3)
        for b in (0.5, 0.3)
    ],
    "probe": [
        Probe(growth_interval=g, growth_factor=f, delay=2) for g in (1, 2, 5) for f in (2.0, 1.5)
    ],
    "ratio": [Ratio(growth_interval=g, max_scale=m) for g in (1, 4) for m in (2.0**17, 2.0**20)],
    "headroom": [Headroom(margin=m, interval=i) for m in (0, 1, 5, 12) for i in (1, 3)],
    "floor": [FloorSchedule(growth_interval=g, milestones=((4, 2.0**9),)) for g in (1, 2)],
    "alike": [Probe(growth_interval=2)] * 2,
}


@few
@given(st.sampled_from(sorted(GRIDS)), traces)
@example("headroom", [2.0**20] * STEPS)
@example("probe", [2.0**17, 0.0] * (STEPS // 2))
def test_sweep_rows_equal_fold(name: str, trace: list[float]) -> None:
    for row, policy in zip(
        np.asarray(sweep_policies(GRIDS[name], trace)), GRIDS[name], strict=True
    ):
        assert row.tolist() == replay_thresholds(policy, trace).scales().tolist()


@few
@given(traces)
def test_summary_matches_rows(trace: list[float]) -> None:
    short = sweep_policies(GRIDS["probe"], trace, summary=True)
    for i, policy in enumerate(GRIDS["probe"]):
        alone = replay_thresholds(policy, trace)
        assert (short.scale[i], short.skipped[i]) == (alone.state.scale, len(alone.skipped))
        assert float(short.mean_log2_scale[i]) == pytest.approx(alone.mean_log2_scale, rel=1e-5)


def test_each_policy_can_have_own_trace() -> None:
    policies = GRIDS["deduplicated"]
    traces = 2.0 ** np.random.default_rng(1).normal(16, 2, (len(policies), 50))
    for row, policy, trace in zip(
        np.asarray(sweep_policies(policies, traces)), policies, traces, strict=True
    ):
        assert row.tolist() == replay_thresholds(policy, trace).scales().tolist()


def test_largest_gradient_uses_given_format() -> None:
    policies, trace = GRIDS["headroom"], [2.0**20, 2.0**9, 2.0**13] * (STEPS // 3)
    rows = np.asarray(sweep_policies(policies, trace, top=448.0)).tolist()
    assert rows == [
        replay_thresholds(policy, trace, top=448.0).scales().tolist() for policy in policies
    ]
    assert rows[0] != replay_thresholds(policies[0], trace).scales().tolist()


@pytest.mark.parametrize(
    ("policies", "thresholds", "shown"),
    [
        ([], [1.0], "one or more policies"),
        ([Rule()], [1.0], "one or more policies"),
        ([Probe(), Headroom()], [1.0], "Headroom, Probe"),
        ([Probe(), Probe(delay=1)], [1.0], "delay is 0"),
        ([Probe()], [[1.0], [2.0]], r"shape \(2, 1\)"),
        ([Probe()], [1.0, math.nan], "nan"),
        ([Probe()], [-1.0], "-1.0"),
    ],
)
def test_invalid_sweep_raises(policies: list[Any], thresholds: Any, shown: str) -> None:
    with pytest.raises((ValueError, TypeError), match=shown):
        sweep_policies(policies, thresholds)
