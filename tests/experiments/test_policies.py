"""The staleness and policies experiments: their parts, their smoke runs, and what their committed data shows."""

import numpy as np
import pytest

from ampsim import Rule, init, replay
from ampsim.core.policies import Probe
from experiments import policies, staleness
from experiments.training.policies import worst_burst


@pytest.mark.parametrize("name", staleness.MAKERS)
@pytest.mark.parametrize("k", [0, 2])
def test_pipeline_scales_replay_its_overflows(name: str, k: int) -> None:
    config = staleness.Config(steps=60, interval=3, warm_up=1)
    row = staleness.trained(name, k, 0, config, lambda step: None)
    found = [step in row["found_inf"] for step in range(60)]
    assert sum(found) >= 5
    policy = staleness.MAKERS[name](growth_interval=3, delay=k)
    scales = [2.0**16, *replay(policy, found)][:60]
    changes = [[i, s] for i, s in enumerate(scales) if i == 0 or s != scales[i - 1]]
    assert row["scale_changes"] == changes


def test_whole_periods_hold_requested_bursts() -> None:
    for k in (0, 3):
        steps = staleness.whole_periods(Rule(2.0**20, growth_interval=5, delay=k), 2.0**20.5, 4)
        assert sum(bad for _, bad in steps) == 4 * (k + 1)


@pytest.mark.parametrize("name", staleness.MAKERS)
def test_constant_threshold_cost_matches_t5(name: str) -> None:
    for k in (0, 2):
        row = staleness.standing(name, k, staleness.Config(interval=5, periods=4))
        for key, value in row["predicted"].items():
            assert row[key] == pytest.approx(value, rel=1e-12)


def test_policy_columns_are_counted() -> None:
    config = policies.Config(steps=40, warm_up=8, fall_steps=2, shown=10)
    thresholds = np.full(40, 2.0**20.5)
    row = policies.meet(Rule(2.0**20, growth_interval=4), thresholds, config)
    # every fifth step is at 2^21 and skipped, from step 4 on
    assert (row["skips"], row["burst"], row["headroom"]) == (7, 1, [0.5, 0.0])
    assert row["fall_skips"] == 2
    assert row["recovery"] == 8  # two growths of 4 steps
    assert worst_burst(np.array([True, True, False, True])) == 2
    scales, bad = policies.follow(
        Probe(init_scale=2.0**20, growth_interval=4), init(Probe(init_scale=2.0**20)), thresholds
    )
    assert (len(scales), bad.sum()) == (40, 8)
