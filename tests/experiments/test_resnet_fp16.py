"""What the residual network in fp16 must show, whatever the exact numbers are."""

import dataclasses
import math
from statistics import mean
from typing import Any

import pytest

from ampsim import Rule, records
from experiments import resnet_fp16, runner
from experiments.training import tasks
from tests.experiments import runs
from tests.experiments.runs import assert_replayed, scales

CONFIG = resnet_fp16.Config()
DATA = records.read(runner.DATA / "cpu" / "resnet_fp16.jsonl")[1]
SHORT = dataclasses.replace(resnet_fp16.SMOKE, steps=6, batch_cpu=16, count_every=1)
RULES = {
    "dynamic G=50": Rule(growth_interval=50),
    "dynamic G=200": Rule(growth_interval=200),
    "dynamic G=2000": Rule(growth_interval=2000),
    "init 2^8": Rule(init_scale=2.0**8, growth_interval=50),
    "init 2^32": Rule(init_scale=2.0**32, growth_interval=50),
    "sum": Rule(growth_interval=50),
    "global dynamic": Rule(growth_interval=50),
}
MEAN_LOSS = ("bf16", "unscaled", "dynamic G=50", "dynamic G=200", "dynamic G=2000", "init 2^8", "init 2^32", "sum")


def fresh(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return runs.fresh(resnet_fp16, arm, seed, SHORT, **changes)


def of_arm(name: str) -> list[dict[str, Any]]:
    return [row for row in DATA if row["arm"] == name]


def column(arm: str, name: str) -> list[float]:
    return [row[name] for row in of_arm(arm)]


@pytest.mark.parametrize("arm", list(RULES))
def test_the_reference_machine_replays_the_scales(arm: str) -> None:
    assert len(of_arm(arm)) == len(CONFIG.seeds)
    for row in of_arm(arm):
        assert_replayed(row, RULES[arm])


def test_the_reference_machine_replays_a_fresh_run() -> None:
    row = fresh("init 2^32", steps=20, batch_cpu=4)
    assert 10 < len(row["found_inf"]) < 20
    assert_replayed(row, RULES["init 2^32"])


def test_a_fixed_scale_stays_where_it_is() -> None:
    for name, arm in resnet_fp16.arms(CONFIG).items():
        assert (arm.fixed is None) == (name in RULES)
        if arm.fixed is not None:
            assert all(row["scale_changes"] == [[0, arm.fixed]] for row in of_arm(name))


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    first, again, other = (fresh("global dynamic", seed, steps=3) for seed in (0, 0, 1))
    assert first == again
    assert first["loss"] != other["loss"]


@pytest.mark.parametrize("name", resnet_fp16.TASKS.values())
def test_either_devices_task_runs_in_fp16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(resnet_fp16.TASKS, "cpu", name)
    row = fresh("dynamic G=50", steps=2, batch_cpu=4)
    classes = tasks.make(name, 0, "cpu", 4).test[1].max().item() + 1
    assert row["loss"][0] == pytest.approx(math.log(classes), abs=1)
    assert row["zero"][0] < 0.1


def test_the_global_batch_is_one_of_a_million_images() -> None:
    shared, whole = fresh("global fp32", steps=4), fresh("fp32", steps=4)
    assert shared["loss"] == pytest.approx(whole["loss"], rel=1e-4)  # Adam does not see a factor
    unscaled, dynamic = fresh("global unscaled", steps=4), fresh("global dynamic", steps=4)
    assert unscaled["zero"][0] > 0.9
    assert dynamic["zero"][0] < 0.01
    assert shared["zero"][0] < unscaled["zero"][0] - 0.3  # rounding float32's gradient misses what was lost on the way


# ------------------------------------------------------------------------------------------------ what it shows


@pytest.mark.parametrize("arm", MEAN_LOSS)
def test_with_a_mean_loss_neither_no_scale_nor_one_that_moves_costs_accuracy(arm: str) -> None:
    assert mean(column(arm, "test_accuracy")) == pytest.approx(mean(column("fp32", "test_accuracy")), abs=0.04)


def test_a_share_of_a_large_global_batch_is_flushed_without_a_scale_and_not_with_one() -> None:
    assert max(column("global unscaled", "test_accuracy")) < 0.4
    assert min(min(row["zero"]) for row in of_arm("global unscaled")) > 0.8
    for row in of_arm("global dynamic"):
        assert scales(row)[-1] >= 2.0**20  # it has climbed
        assert mean(row["zero"]) < 0.05


def test_the_scale_that_scalers_start_from_skips_more_steps_where_it_may_not_move() -> None:
    for stays, moves in zip(of_arm("static 2^16"), of_arm("dynamic G=50"), strict=True):
        assert len(stays["found_inf"]) > 3 * len(moves["found_inf"])


def test_a_start_too_high_and_a_sum_are_found_out_by_skipping() -> None:
    for row in of_arm("init 2^32"):
        assert row["found_inf"][:10] == list(range(10))
    for row in of_arm("sum"):
        assert row["found_inf"][0] == 0
        assert scales(row)[-1] <= 2.0**14
    assert not any(row["found_inf"] for row in DATA if row["arm"] in ("fp32", "bf16", "unscaled", "global fp32"))


def test_every_record_is_whole() -> None:
    for row in DATA:
        assert len(row["loss"]) == CONFIG.steps
        assert row["counted_steps"] == list(range(0, CONFIG.steps, CONFIG.count_every))
        assert len(row["zero"]) == len(row["counted_steps"])
        assert row["loss"][0] == pytest.approx(math.log(10), abs=0.3)
