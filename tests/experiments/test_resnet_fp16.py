"""What the residual network in fp16 must show, whatever the exact numbers are."""

import dataclasses
import math
from statistics import mean
from typing import Any

import pytest

from ampsim import Rule
from experiments import resnet_fp16
from experiments.training import tasks
from figures import results
from tests.experiments import runs
from tests.experiments.runs import scales

CONFIG = resnet_fp16.Config()
DATA = results.load("resnet_fp16").records
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


def fresh(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return runs.fresh(resnet_fp16, arm, seed, SHORT, **changes)


def of_arm(name: str) -> list[dict[str, Any]]:
    return [row for row in DATA if row["arm"] == name]


def column(arm: str, name: str) -> list[float]:
    return [row[name] for row in of_arm(arm)]


def test_a_fixed_scale_stays_where_it_is() -> None:
    for name, arm in resnet_fp16.arms(CONFIG).items():
        assert (arm.fixed is None) == (name in RULES)
        if arm.fixed is not None:
            assert all(row["scale_changes"] == [[0, arm.fixed]] for row in of_arm(name))


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


def test_a_share_of_a_large_global_batch_is_flushed_without_a_scale_and_not_with_one() -> None:
    assert max(column("global unscaled", "test_accuracy")) < 0.4
    assert min(min(row["zero"]) for row in of_arm("global unscaled")) > 0.8
    for row in of_arm("global dynamic"):
        assert scales(row)[-1] >= 2.0**20  # it has climbed
        assert mean(row["zero"]) < 0.05


def test_the_scale_that_scalers_start_from_skips_more_steps_where_it_may_not_move() -> None:
    for stays, moves in zip(of_arm("static 2^16"), of_arm("dynamic G=50"), strict=True):
        assert len(stays["found_inf"]) > len(moves["found_inf"])


def test_a_start_too_high_and_a_sum_are_found_out_by_skipping() -> None:
    for row in of_arm("init 2^32"):
        assert row["found_inf"][:10] == list(range(10))
    for row in of_arm("sum"):
        assert row["found_inf"][0] == 0
        assert scales(row)[-1] <= 2.0**14
    assert not any(row["found_inf"] for row in DATA if row["arm"] in ("fp32", "bf16", "unscaled", "global fp32"))
