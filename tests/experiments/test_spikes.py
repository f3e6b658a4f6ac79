"""Spikes: their parts, and that the committed ones cost what T4 says."""

from dataclasses import replace

import torch

from ampsim import Rule, init, update
from ampsim.torch import GradScaler
from experiments import spikes
from experiments.training import fp16, tasks
from figures import results
from tests.experiments import runs

DATA = results.load("spikes").records
CONFIG = spikes.Config()


def test_a_spike_is_met_by_its_skips_and_by_the_first_step_at_the_old_scale() -> None:
    rule = Rule(growth_interval=3)
    state, scales, flags = init(rule), [], []
    for step in range(30):
        scales.append(state.scale)
        flags.append(step in (4, 5))
        state = update(rule, state, flags[-1])
    # a growth at 3; two backoffs, then two growths of three steps: back at 4 + 2 + 6
    found = spikes.met(rule, scales, flags, start=4, height=2, lasts=3)
    assert found["skips"] == found["skips_t4"] == 2
    assert found["recovery"] == found["recovery_t4"] == 8
    assert found["log2_scale"] == 17
    assert spikes.met(rule, scales[:8], flags[:8], 4, 2, 3)["recovery"] is None


def test_a_gain_puts_the_ceiling_as_far_below_the_scale_as_it_says() -> None:
    task = tasks.sigmoid(fp16.prepare(0), "cpu", CONFIG.batch, depth=CONFIG.depth, width=CONFIG.width)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=CONFIG.lr, eps=1e-15, fused=True)
    x, y = task.draw()
    for height, expected in ((0, False), (1, True), (3, True)):
        scaler = GradScaler("cpu", 2.0**10)
        gain = 2.0**height * spikes.ceiling(task, x, y) / 2.0**10
        before = fp16.flat_parameters(task.model)
        assert spikes.clipped_step(task, x, y, optimizer, scaler, gain) == expected
        assert torch.equal(before, fp16.flat_parameters(task.model)) == expected
        assert scaler.get_scale() == (2.0**9 if expected else 2.0**10)


def test_a_fresh_spike_that_is_shorter_than_high_costs_what_t4_says() -> None:
    config = replace(spikes.SMOKE, spikes=((5, 3), (9, 3)), growth_interval=4)
    for name in ("spike capped", "spike free"):
        for spike in runs.fresh(spikes, name, 0, config, steps=spikes.starts(config)[-1])["spikes"]:
            assert (spike["skips"], spike["recovery"]) == (3, 15)


def test_the_committed_spikes_are_within_one_skip_of_t4_and_most_are_exact() -> None:
    met = [spike for row in DATA for spike in row["spikes"]]
    assert len(met) == 2 * len(CONFIG.spikes) * len(CONFIG.seeds)
    assert CONFIG.steps == spikes.starts(CONFIG)[-1]
    assert all(abs(spike["skips"] - spike["skips_t4"]) <= 1 for spike in met)
    assert sum(spike["recovery"] == spike["recovery_t4"] for spike in met) > len(met) / 2
    for spike in met:
        if spike["lasts"] < spike["height"]:
            assert spike["skips"] == spike["lasts"]
        if spike["recovery"] is not None:  # m skips and m growths, and a few steps where these were interrupted
            assert spike["recovery"] >= spike["skips"] * (CONFIG.growth_interval + 1)
