"""The staleness experiment: its pipeline follows the state machine."""

import pytest

from ampsim import replay
from experiments import staleness


@pytest.mark.parametrize("name", staleness.MAKERS)
@pytest.mark.parametrize("k", [0, 2])
def test_pipeline_scales_replay_its_overflows(name: str, k: int) -> None:
    config = staleness.Config(steps=60, interval=3, warm_up=1)
    row = staleness.run(config, staleness.Arm(name, k), 0, "cpu", lambda step: None)
    found = [step in row["found_inf"] for step in range(60)]
    assert sum(found) >= 5
    policy = staleness.MAKERS[name](growth_interval=3, delay=k)
    scales = [2.0**16, *replay(policy, found)][:60]
    changes = [[i, s] for i, s in enumerate(scales) if i == 0 or s != scales[i - 1]]
    assert row["scale_changes"] == changes
