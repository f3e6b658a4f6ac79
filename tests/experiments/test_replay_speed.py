"""Both ways do the same work, the ratios are what the times give, and nothing here asserts a time."""

import numpy as np
import pytest

from ampsim import Rule, init, update
from ampsim.core.replay.ceilings import index_ceilings

pytest.importorskip("numba", reason="the experiment compiles its step-by-step loop: pip install 'ampsim[replay]'")

from experiments import replay_speed


@pytest.mark.parametrize("name", replay_speed.TRACES)
def test_both_ways_are_the_machine(name: str) -> None:
    ceilings = replay_speed.trace(name, 9000, np.random.default_rng(2))
    stepwise, index = replay_speed.Fold(ceilings), index_ceilings(ceilings)
    for rule in (*replay_speed.rules(2), Rule(2.0**127, growth_interval=3), Rule(growth_factor=1.3, growth_interval=7)):
        state, skips = init(rule), 0
        for ceiling in map(float, ceilings):
            skips += state.scale > ceiling
            state = update(rule, state, state.scale > ceiling)
        assert replay_speed.check(stepwise, index, rule) == skips > 0
        assert stepwise(rule)[2] == state.scale


def test_ways_that_disagree_have_no_ratio() -> None:
    ceilings = replay_speed.trace("walk", 9000, np.random.default_rng(2))
    lower = index_ceilings(np.where(np.arange(9000) == 4000, 0, ceilings).astype(np.float32))
    with pytest.raises(RuntimeError, match="expected the same from both ways"):
        replay_speed.check(replay_speed.Fold(ceilings), lower, Rule())


def test_the_traces_are_as_described() -> None:
    walk, spikes = (replay_speed.trace(name, 300_000, np.random.default_rng(0)) for name in replay_speed.TRACES)
    assert walk.min() > 0
    assert 0 < (spikes == 0).sum() < 20
    away = np.abs(np.diff(np.log2(np.maximum(spikes, 2.0**-100)))) > 2  # into a spike and out of it
    assert away.mean() == pytest.approx(2 * np.exp(-2 / 4) / 500, rel=0.2)
    assert len({rule.growth_interval for rule in replay_speed.rules(16)}) == 16


def test_the_grid_has_every_combination_once() -> None:
    family = list(replay_speed.grid((3, 2, 2)))
    assert len(set(family)) == 12
    assert {rule.growth_interval for rule in family} == {100, 1414, 20_000}


def test_the_table_shows_medians_and_the_extremes() -> None:
    times = {"fold": [300.0, 320.0, 900.0], "replay": [30.0, 40.0, 30.0]}
    times |= {"index": [60.0] * 3, "index and replay": [100.0] * 3}
    row = {"trace": "walk", "steps": 10**6, "skips": [9], "microseconds": times, "without numba": 3000.0}
    text = replay_speed.table([{"rows": [row], "sweep": {"rules": 4, "seconds": 0.5, "speed": 8e6}}])
    assert "10.0 (8.0 to 30.0)" in text
    assert "3.2 (3.0 to 9.0)" in text
    assert "3.33e+10" in text
