"""Bad batches: which are touched, and that no scale lets them pass."""

import math

import pytest
import torch

from ampsim import Rule
from ampsim.core import theory
from experiments import overflow_storm
from experiments.training import fp16 as _fp16
from experiments.training import tasks
from tests.experiments import runs

CONFIG = overflow_storm.Config()


def sigmoid(config: overflow_storm.Config) -> tasks.Task:
    return tasks.sigmoid(
        _fp16.prepare(0), "cpu", config.batch, depth=config.depth, width=config.width
    )


# ------------------------------------------------------------------------------------------------------
# storms


def test_higher_rate_includes_lower_rate_steps() -> None:
    rare, often = (overflow_storm.bad_steps(4000, rate, seed=3) for rate in (0.05, 0.2))
    assert all(b for a, b in zip(rare, often, strict=True) if a)
    assert 100 < sum(rare) < 300 < 650 < sum(often) < 950
    assert overflow_storm.bad_steps(4000, 0.05, seed=4) != rare


def test_only_bad_batches_are_changed() -> None:
    config = overflow_storm.SMOKE
    plain = sigmoid(config)
    expected = [plain.draw() for _ in range(3)]
    task = sigmoid(config)
    drawn = [
        corrupted.draw()
        for corrupted in [overflow_storm.corrupted(task, [False, True, False])]
        for _ in range(3)
    ]
    differ = [
        (a[0] != b[0]).nonzero().tolist() for a, b in zip(expected, drawn, strict=True)
    ]
    assert differ == [[], [[0, overflow_storm.PIXEL]], []]
    assert drawn[1][0].max() == overflow_storm.BAD
    assert all(torch.equal(a[1], b[1]) for a, b in zip(expected, drawn, strict=True))


@pytest.mark.parametrize("log2", [-20, 0, 16])
def test_bad_batch_overflows_at_any_scale(log2: int) -> None:
    task = sigmoid(CONFIG)
    x, y = overflow_storm.corrupted(task, [True]).draw()
    for fp16 in (True, False):
        with _fp16.autocast("cpu", fp16=fp16):
            loss = task.criterion(task.model(x), y)
        task.model.zero_grad()
        (loss * 2.0**log2).backward()
        assert math.isfinite(loss.item())  # the loss does not show it
        assert _fp16.all_finite(_fp16.flat_gradient(task.model)) != fp16


def test_every_bad_batch_is_skipped() -> None:
    row = runs.fresh(overflow_storm, "storm 2")
    assert row["bad"]
    assert set(row["bad"]) <= set(row["found_inf"])
    critical = theory.critical_bad_rate(Rule(growth_interval=CONFIG.growth_interval))
    assert row["rate"] == pytest.approx(2 * critical)
