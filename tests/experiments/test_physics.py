"""What the committed runs must show, whatever the exact numbers are; and that they mean what they say."""

import dataclasses
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ampsim import records
from experiments import runner, scale_crash, sigmoid_underflow
from experiments.models.sigmoid_mlp import SigmoidMLP
from experiments.training import digits_data, fp16, series, tasks
from experiments.training.crash import crash_step
from figures import results
from tests.experiments import runs
from tests.experiments.runs import scales

CPU = runner.DATA / "cpu"
UNDERFLOW = results.load("sigmoid_underflow").records
ARMS = sigmoid_underflow.arms(sigmoid_underflow.Config())
CRASH = results.load("scale_crash").records


def arm(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["arm"] == name]


def fresh(module: Any, **changes: Any) -> list[dict[str, Any]]:
    """Return short runs of all arms."""
    config = dataclasses.replace(module.SMOKE, steps=16, **changes)
    rows = [runs.fresh(module, arm, seed, config) for arm in module.arms(config) for seed in config.seeds]
    return [records.decode(records.encode(row)) for row in rows]


@pytest.fixture(scope="module")
def underflow() -> list[dict[str, Any]]:
    return [*UNDERFLOW, *fresh(sigmoid_underflow, growth_intervals=(1, 2))]


@pytest.fixture(scope="module")
def crash() -> list[dict[str, Any]]:
    return [*CRASH, *fresh(scale_crash, growth_interval=50)]


def test_counts_fit_in_their_layers_and_overflow_only_where_a_step_was_skipped(
    underflow: list[dict[str, Any]],
) -> None:
    for row in underflow:
        parts = [np.array(row[name]) for name in ("zero", "subnormal", "overflow")]
        assert all(part.shape == (len(row["counted_steps"]), len(row["elements"])) for part in parts)
        assert (sum(parts) <= np.array(row["elements"])).all()
        overflowed = np.array(row["counted_steps"])[parts[2].sum(axis=1) > 0]
        assert overflowed.tolist() == row["found_inf"]


def test_crashes_grow_with_the_learning_rate() -> None:
    names = [name for name in dict.fromkeys(row["arm"] for row in CRASH) if name.startswith("fp16")]
    crashes = [sum(row["crash_step"] is not None for row in arm(CRASH, name)) for name in names]
    assert crashes == sorted(crashes)


def test_after_a_crash_the_scale_only_halves_the_weights_stand_still_and_are_finite() -> None:
    for row in CRASH:
        assert row["parameters_finite"]
        if (start := row["crash_step"]) is not None:
            scale = scales(row)[start:]
            assert all(b == np.float32(a / 2) for a, b in pairwise(scale))  # float32: half of 2^-149 is 0
            assert set(row["move"][start:]) == {0.0}
            assert set(range(start, len(scale) + start)) <= set(row["forward_overflow"])


def test_a_skipped_step_moves_nothing_and_a_clean_one_does(crash: list[dict[str, Any]]) -> None:
    for row in crash:
        moved = {step for step, move in enumerate(row["move"]) if move > 0}
        assert moved == set(range(len(row["loss"]))) - set(row["found_inf"])


@pytest.mark.parametrize(
    ("forward", "skipped", "start"),
    [
        ([], [], None),
        ([3], [2], None),
        ([3], [3], 3),
        ([1, 3], [1, 2, 3], 3),
        ([2, 3], [1, 2, 3], 2),
        ([0, 1], [0, 1], None),
    ],
)
def test_a_crash_lasts_to_the_end(forward: list[int], skipped: list[int], start: int | None) -> None:
    assert crash_step(forward, skipped, steps=4) == start


def test_counts_are_of_what_fp16_holds() -> None:
    nan, inf, tiny = math.nan, math.inf, 2.0**-25
    layers = [[0.0, -0.0, tiny, 1.01 * tiny, -(2.0**-24)], [2.0**-14, 65504.0, 65520.0, -inf, nan, 1.0]]
    vector = torch.tensor(layers[0] + layers[1])
    zero, subnormal, overflow = fp16.count_classes(vector, [5, 6])
    assert (zero, subnormal, overflow) == ([3, 0], [2, 0], [0, 3])


def test_scaled_gradients_in_grad_are_the_fp16_numbers_of_the_backward_pass() -> None:
    fp16.prepare(0)
    data, model = digits_data.load("cpu"), SigmoidMLP(64, 32, 8, 10)
    with fp16.autocast("cpu", fp16=True):
        loss = torch.nn.functional.cross_entropy(model(data.train_x[:64]), data.train_y[:64])
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = fp16.flat_gradient(model)
    assert gradient.dtype == torch.float32
    assert torch.equal(gradient, gradient.half().float())


def test_the_split_is_the_same_for_every_seed_and_has_the_recorded_source(tmp_path: Path) -> None:
    fp16.prepare(1)
    first = digits_data.load("cpu")
    fp16.prepare(2)
    assert all(torch.equal(a, b) for a, b in zip(first, digits_data.load("cpu"), strict=True))
    assert [len(part) for part in first] == [1437, 1437, 360, 360]
    assert tasks.inputs("sigmoid")["digits"].startswith("09f66e6d")


def test_the_file_is_scikit_learns() -> None:
    from sklearn.datasets import load_digits  # a second, of which each worker would pay one

    data, theirs = digits_data.load("cpu"), load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.cat([data.train_x, data.test_x]) * 16, torch.tensor(theirs.data).float()[order])
    assert torch.equal(torch.cat([data.train_y, data.test_y]), torch.tensor(theirs.target)[order])


def test_long_series_are_stored_as_their_changes() -> None:
    assert series.changes([2.0, 2.0, 1.0, 1.0, 4.0]) == [[0, 2.0], [2, 1.0], [4, 4.0]]
    assert series.six_digits([1 / 3, math.inf, 123456789.0]) == [0.333333, math.inf, 123457000.0]
