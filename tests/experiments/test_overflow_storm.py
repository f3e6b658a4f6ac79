"""Bad batches: the parts, and what the committed runs must show, whatever the exact numbers are."""

import math

import numpy as np
import pytest
import torch

from ampsim import Rule
from ampsim.core import theory
from experiments import overflow_storm
from experiments.training import fp16 as _fp16
from experiments.training import tasks
from figures import overflow_storm as figure
from figures import results

RUN = results.load("overflow_storm")
CONFIG = overflow_storm.Config()


def sigmoid(config: overflow_storm.Config) -> tasks.Task:
    return tasks.sigmoid(_fp16.prepare(0), "cpu", config.batch, depth=config.depth, width=config.width)


# ------------------------------------------------------------------------------------------------------ storms


def test_bad_steps_of_a_lower_rate_are_bad_at_a_higher_one_too() -> None:
    rare, often = (overflow_storm.bad_steps(4000, rate, seed=3) for rate in (0.05, 0.2))
    assert all(b for a, b in zip(rare, often, strict=True) if a)
    assert 100 < sum(rare) < 300 < 650 < sum(often) < 950
    assert overflow_storm.bad_steps(4000, 0.05, seed=4) != rare


def test_only_bad_batches_are_touched_and_the_images_stay_as_they_are() -> None:
    config = overflow_storm.SMOKE
    plain = sigmoid(config)
    expected = [plain.draw() for _ in range(3)]
    task = sigmoid(config)
    drawn = [corrupted.draw() for corrupted in [overflow_storm.corrupted(task, [False, True, False])] for _ in range(3)]
    differ = [(a[0] != b[0]).nonzero().tolist() for a, b in zip(expected, drawn, strict=True)]
    assert differ == [[], [[0, overflow_storm.PIXEL]], []]
    assert drawn[1][0].max() == overflow_storm.BAD
    assert all(torch.equal(a[1], b[1]) for a, b in zip(expected, drawn, strict=True))


@pytest.mark.parametrize("log2", [-20, 0, 16])
def test_a_bad_batch_overflows_at_every_scale_and_in_fp16_only(log2: int) -> None:
    task = sigmoid(CONFIG)
    x, y = overflow_storm.corrupted(task, [True]).draw()
    for fp16 in (True, False):
        with _fp16.autocast("cpu", fp16=fp16):
            loss = task.criterion(task.model(x), y)
        task.model.zero_grad()
        (loss * 2.0**log2).backward()
        assert math.isfinite(loss.item())  # the loss does not show it
        assert _fp16.all_finite(_fp16.flat_gradient(task.model)) != fp16


def test_every_bad_batch_was_skipped_and_the_rate_is_what_the_arm_says() -> None:
    critical = theory.critical_bad_rate(Rule(growth_interval=CONFIG.growth_interval))
    for row in RUN.records:
        assert set(row["bad"]) <= set(row["found_inf"])
        assert row["rate"] == pytest.approx(float(row["arm"].split()[1]) * critical)
        expected, deviation = row["rate"] * CONFIG.steps, math.sqrt(row["rate"] * CONFIG.steps)
        assert abs(len(row["bad"]) - expected) < 4 * deviation


def test_above_the_critical_rate_the_scale_falls_as_t8_says_and_below_it_stays() -> None:
    for ratio in CONFIG.ratios:
        rows = RUN.arm(f"storm {ratio:g}")
        drifts = [figure.drift(row) for row in rows]
        rule, rate = Rule(growth_interval=CONFIG.growth_interval), rows.first["rate"]
        up = (1 - rate) ** rule.growth_interval
        visits = rate / (1 - up)  # a step
        deviation = math.sqrt(visits * 4 * up * (1 - up) / CONFIG.steps / len(rows))  # of the mean drift
        foretold = theory.bad_step_drift(rule, rate)
        assert (foretold < 0) == (ratio > 1)
        assert abs(np.mean(drifts) - min(0.0, foretold)) < 4 * deviation
    assert min(min(value for _, value in row["scale_changes"]) for row in RUN.arm("storm 0.5")) > 2.0**4


def test_where_the_scale_has_sunk_training_stops_and_both_cures_undo_it() -> None:
    calm, sunk = ([row["test_loss"] for row in RUN.arm(arm)] for arm in ("storm 0.25", "storm 2"))
    assert all(b > a + 0.2 for a, b in zip(calm, sunk, strict=True))
    assert all(row["zero"][-1] > 0.9 for row in RUN.arm("storm 2"))
    for cure in (f"floor=2^{CONFIG.floor_log2}", f"G={CONFIG.short_interval}"):
        cured = [row["test_loss"] for row in RUN.arm(f"storm 2 {cure}")]
        assert all(b < a - 0.2 for a, b in zip(sunk, cured, strict=True))
        assert max(row["zero"][-1] for row in RUN.arm(f"storm 2 {cure}")) < 0.5
    assert all(
        min(v for _, v in row["scale_changes"]) == 2.0**CONFIG.floor_log2 for row in RUN.arm("storm 2 floor=2^8")
    )
