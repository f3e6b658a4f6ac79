"""What the residual network in fp16 must show, whatever the exact numbers are."""

import dataclasses
import math
from statistics import mean
from typing import Any

import pytest

from experiments import resnet_fp16
from experiments.training import tasks
from figures import results
from tests.experiments import runs
from tests.experiments.runs import scales

CONFIG = resnet_fp16.Config()
RUN = results.load("resnet_fp16")
SHORT = dataclasses.replace(resnet_fp16.SMOKE, steps=6, batch_cpu=16, count_every=1)


def fresh(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return runs.fresh(resnet_fp16, arm, seed, SHORT, **changes)


def column(arm: str, name: str) -> list[float]:
    return [row[name] for row in RUN.arm(arm)]


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
    assert min(min(row["zero"]) for row in RUN.arm("global unscaled")) > 0.8
    for row in RUN.arm("global dynamic"):
        assert scales(row)[-1] >= 2.0**20  # it has climbed
        assert mean(row["zero"]) < 0.05


def test_the_scale_that_scalers_start_from_skips_more_steps_where_it_may_not_move() -> None:
    for stays, moves in zip(RUN.arm("static 2^16"), RUN.arm("dynamic G=50"), strict=True):
        assert len(stays["found_inf"]) > len(moves["found_inf"])


def test_a_start_too_high_and_a_sum_are_found_out_by_skipping() -> None:
    for row in RUN.arm("init 2^32"):
        assert row["found_inf"][:10] == list(range(10))
    for row in RUN.arm("sum"):
        assert row["found_inf"][0] == 0
        assert scales(row)[-1] <= 2.0**14
    assert not any(row["found_inf"] for row in RUN.records if row["arm"] in ("fp32", "bf16", "unscaled", "global fp32"))
