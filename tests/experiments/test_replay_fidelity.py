"""Replaying rules over recorded runs: exact on a run's own recording, and as good as the committed data says."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.core.machine import Rule
from experiments import replay_fidelity
from experiments.theorems.simulate import follow
from experiments.training.loop import FP32
from figures import replay_fidelity as figure
from figures import results
from tests.examples import examples
from tests.experiments import runs

RUN = results.load("replay_fidelity")
PROVENANCE, ROWS = RUN.provenance, RUN.records
CONFIG = PROVENANCE["config"]
SMALL = dataclasses.replace(replay_fidelity.SMOKE, steps=30, batch_cpu=4, start_log2=22)


def of(network: str) -> list[dict[str, Any]]:
    return [row for row in ROWS if row["arm"] == network]


@pytest.fixture(scope="module")
def fresh() -> dict[str, dict[str, Any]]:
    return {arm: runs.fresh(replay_fidelity, arm, 0, SMALL) for arm in ("relu", "sigmoid")}


@pytest.mark.parametrize("network", ["relu", "sigmoid"])
def test_on_its_own_recording_a_rule_does_exactly_what_it_did(network: str, fresh: dict[str, dict[str, Any]]) -> None:
    for row, intervals in [(fresh[network], SMALL.intervals), *((row, CONFIG["intervals"]) for row in of(network))]:
        for interval in intervals:
            own, real = figure.replay(row, f"G={interval}", interval), row["runs"][f"G={interval}"]
            assert (own["skips"], own["mean_log2_scale"], own["distance"]) == (
                real["skips"], real["mean_log2_scale"], 0.0,
            )  # fmt: skip
            assert real["skips"] > 0
            assert own.get("log2_changes", real["log2_changes"]) == real["log2_changes"]


@settings(max_examples=examples(ms=1.7))
@given(trace=st.lists(st.integers(0, 12), min_size=1, max_size=60), interval=st.integers(1, 7))
def test_a_replay_has_the_scale_in_force_at_each_step(trace: list[int], interval: int) -> None:
    config = dataclasses.replace(SMALL, start_log2=8)
    bits, skips = replay_fidelity.replayed(interval, np.array(trace, float), config)
    found, expected = follow(Rule(2.0**8, growth_interval=interval), [2.0**k for k in trace])
    assert bits.tolist() == expected.tolist()
    assert skips == found.sum()


def test_the_float32_recording_is_of_the_largest_gradients() -> None:
    made = replay_fidelity.record(SMALL, replay_fidelity.Network("relu"), 0, "cpu", None)
    task, optimizer = replay_fidelity.make_task(SMALL, replay_fidelity.Network("relu"), 0, "cpu")
    steps = FP32.train(task, optimizer, SMALL.steps)
    losses, largest = np.array([(step.loss, step.gradient.abs().max().item()) for step in steps]).T
    assert made.final_loss == losses.mean()  # float32 indeed
    assert made.ceilings.tolist() == np.floor(np.log2(65520 / largest)).tolist()
    assert not made.found_inf.any()
    assert np.abs(made.tried - made.ceilings).max() <= 1  # rounded in fp16 on the way
    assert (made.tried == made.ceilings).mean() > 0.8


def test_skips_are_foretold_whatever_was_recorded() -> None:
    for row in ROWS:
        for replay in row["replays"]:
            real = row["runs"][f"G={replay['interval']}"]["skips"]
            assert abs(replay["skips"] - real) <= max(4, 0.1 * real)


def test_the_easy_networks_replays_are_nearer_than_another_seed_and_the_deep_ones_are_not() -> None:
    def distance(network: str, trace: str, interval: int) -> float:
        return float(np.mean([figure.replay(row, trace, interval)["distance"] for row in of(network)]))

    def seeds(network: str, interval: int) -> float:
        return figure.between_seeds(of(network), interval, CONFIG["steps"])

    for interval in CONFIG["intervals"]:
        assert distance("relu", "fp32", interval) < 0.6 * seeds("relu", interval)
    assert distance("sigmoid", "fp32", 20) > 0.6 * seeds("sigmoid", 20)
    assert distance("sigmoid", "fp32", 200) > distance("sigmoid", "G=50", 200)


def test_a_probe_on_parameters_puts_the_deep_networks_scale_too_high() -> None:
    for interval in (20, 50, 200):
        for trace, least in (("fp32", 0.25), ("fp32 tried", -0.5)):
            bias = np.mean([
                figure.replay(row, trace, interval)["mean_log2_scale"] - row["runs"][f"G={interval}"]["mean_log2_scale"]
                for row in of("sigmoid")
            ])  # fmt: skip
            assert bias > least
