"""What is counted of a run in fp16 is what happened in it."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import scale_crash, sigmoid_underflow
from experiments.models.sigmoid_mlp import SigmoidMLP
from experiments.training import digits_data, fp16, series, tasks
from experiments.training.crash import crash_step
from tests.experiments import runs


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
def test_a_crash_lasts_to_the_end(
    forward: list[int], skipped: list[int], start: int | None
) -> None:
    assert crash_step(forward, skipped, steps=4) == start


@pytest.mark.parametrize("arm", ["unscaled", "static 2^20", "dynamic G=2"])
def test_overflows_are_of_skipped_steps(arm: str) -> None:
    row = runs.fresh(sigmoid_underflow, arm, steps=16)
    parts = [np.array(row[name]) for name in ("zero", "subnormal", "overflow")]
    assert all(
        part.shape == (len(row["counted_steps"]), len(row["elements"]))
        for part in parts
    )
    assert (sum(parts) <= np.array(row["elements"])).all()
    overflowed = np.array(row["counted_steps"])[parts[2].sum(axis=1) > 0]
    assert overflowed.tolist() == row["found_inf"]


@pytest.mark.parametrize("arm", ["fp16 lr=0.05", "fp32 lr=0.05"])
def test_a_skipped_step_moves_nothing(arm: str) -> None:
    row = runs.fresh(scale_crash, arm, steps=16)
    moved = {step for step, move in enumerate(row["move"]) if move > 0}
    assert moved == set(range(16)) - set(row["found_inf"])
    assert row["parameters_finite"]
    assert bool(row["found_inf"]) == (arm == "fp16 lr=0.05")


def test_counts_match_fp16_classes() -> None:
    nan, inf, tiny = math.nan, math.inf, 2.0**-25
    layers = [
        [0.0, -0.0, tiny, 1.01 * tiny, -(2.0**-24)],
        [2.0**-14, 65504.0, 65520.0, -inf, nan, 1.0],
    ]
    vector = torch.tensor(layers[0] + layers[1])
    zero, subnormal, overflow = fp16.count_classes(vector, [5, 6])
    assert (zero, subnormal, overflow) == ([3, 0], [2, 0], [0, 3])


def test_stored_gradients_are_fp16_values() -> None:
    fp16.prepare(0)
    data, model = digits_data.load("cpu"), SigmoidMLP(64, 32, 8, 10)
    with fp16.autocast("cpu", fp16=True):
        loss = torch.nn.functional.cross_entropy(
            model(data.train_x[:64]), data.train_y[:64]
        )
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = fp16.flat_gradient(model)
    assert gradient.dtype == torch.float32
    assert torch.equal(gradient, gradient.half().float())


def test_split_does_not_depend_on_seed(tmp_path: Path) -> None:
    fp16.prepare(1)
    first = digits_data.load("cpu")
    fp16.prepare(2)
    assert all(
        torch.equal(a, b) for a, b in zip(first, digits_data.load("cpu"), strict=True)
    )
    assert [len(part) for part in first] == [1437, 1437, 360, 360]
    assert tasks.inputs("sigmoid")["digits"].startswith("09f66e6d")


@pytest.mark.deep  # scikit-learn is imported for a second, and the file does not change
def test_digits_match_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data, theirs = digits_data.load("cpu"), load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        torch.cat([data.train_x, data.test_x]) * 16,
        torch.tensor(theirs.data).float()[order],
    )
    assert torch.equal(
        torch.cat([data.train_y, data.test_y]), torch.tensor(theirs.target)[order]
    )


def test_series_are_stored_as_changes() -> None:
    assert series.changes([2.0, 2.0, 1.0, 1.0, 4.0]) == [[0, 2.0], [2, 1.0], [4, 4.0]]
    assert series.six_digits([1 / 3, math.inf, 123456789.0]) == [
        0.333333,
        math.inf,
        123457000.0,
    ]
