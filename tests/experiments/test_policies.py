"""The staleness and policies experiments: their parts, their smoke runs, and what their committed data shows."""

import numpy as np
import pytest

from ampsim import Rule, init, replay
from ampsim.core.policies import Probe
from experiments import policies, staleness
from experiments.training.policies import worst_burst
from figures import results

STALENESS = results.load("staleness").records
POLICIES = results.load("policies").records


@pytest.mark.parametrize("name", staleness.MAKERS)
@pytest.mark.parametrize("k", [0, 2])
def test_the_pipelines_scales_are_replays_of_its_own_overflows(name: str, k: int) -> None:
    config = staleness.Config(steps=60, interval=3, warm_up=1)
    row = staleness.trained(name, k, 0, config, lambda step: None)
    found = [step in row["found_inf"] for step in range(60)]
    assert sum(found) >= 5
    policy = staleness.MAKERS[name](growth_interval=3, delay=k)
    scales = [2.0**16, *replay(policy, found)][:60]
    changes = [[i, s] for i, s in enumerate(scales) if i == 0 or s != scales[i - 1]]
    assert row["scale_changes"] == changes


def test_whole_periods_hold_as_many_bursts_as_asked_for() -> None:
    for k in (0, 3):
        steps = staleness.whole_periods(Rule(2.0**20, growth_interval=5, delay=k), 2.0**20.5, 4)
        assert sum(bad for _, bad in steps) == 4 * (k + 1)


def test_the_committed_staleness_is_what_t5_says() -> None:
    rows = STALENESS[0]["rows"]
    assert len(rows) == 12
    for row in rows:
        for key, value in row["predicted"].items():
            assert row[key] == pytest.approx(value, rel=1e-12)


def test_in_training_too_cumulative_backoff_pays_in_bits_and_deduplicated_in_skips() -> None:
    def mean(policy: str, k: int, key: str) -> float:
        return float(np.mean([row[key] for row in STALENESS if row["arm"] == f"{policy} k={k}"]))

    assert mean("cumulative", 4, "headroom") > mean("cumulative", 0, "headroom") + 0.3
    assert mean("cumulative", 4, "skip_rate") == pytest.approx(mean("cumulative", 0, "skip_rate"), rel=0.1)
    assert mean("deduplicated", 4, "skip_rate") > 1.15 * mean("deduplicated", 0, "skip_rate")
    for policy in ("deduplicated", "probe"):
        assert mean(policy, 4, "headroom") == pytest.approx(mean(policy, 0, "headroom"), abs=0.15)


def test_the_stream_is_met_by_every_policy_and_its_ceiling_is_one() -> None:
    assert [list(row["policies"]) for row in POLICIES] == [list(policies.POLICIES)] * len(POLICIES)
    assert sum(row["wrong"] for row in POLICIES) <= 0.01 * sum(row["checked"] for row in POLICIES)


def test_a_short_interval_skips_ten_times_as_much_and_headroom_never() -> None:
    for row in POLICIES:
        met = row["policies"]
        assert met["backoff G=10"]["skip_rate"] > 0.06
        assert met["backoff G=10"]["skip_rate"] > 10 * met["backoff G=200"]["skip_rate"]
        assert met["headroom 1 bit"]["skips"] == met["headroom 3 bits"]["skips"] == met["LogMax"]["skips"] == 0
        assert met["headroom 3 bits"]["headroom"][0] > met["headroom 1 bit"]["headroom"][0] + 1.5
        # A floor above the ceiling skips every step to the end.
        assert met["floor schedule G=2000"]["long_fall_skips"] > 2400


def test_numbers_of_a_policy_are_counted_right() -> None:
    config = policies.Config(steps=40, warm_up=8, fall_steps=2, shown=10)
    ceilings = np.full(40, 2.0**20.5)
    row = policies.meet(Rule(2.0**20, growth_interval=4), ceilings, config)
    # every fifth step is at 2^21 and skipped, from step 4 on
    assert (row["skips"], row["burst"], row["headroom"]) == (7, 1, [0.5, 0.0])
    assert row["fall_skips"] == 2
    assert row["recovery"] == 8  # two growths of 4 steps
    assert worst_burst(np.array([True, True, False, True])) == 2
    scales, bad = policies.follow(
        Probe(init_scale=2.0**20, growth_interval=4), init(Probe(init_scale=2.0**20)), ceilings
    )
    assert (len(scales), bad.sum()) == (40, 8)
