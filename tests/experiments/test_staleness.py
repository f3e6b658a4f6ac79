"""The staleness experiment: its parts match the state machine and T5."""

import pytest

from ampsim import Rule, replay
from experiments import staleness


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
