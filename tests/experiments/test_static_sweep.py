"""A plateau between two cliffs, whatever the exact numbers are; and what gradients tell of them."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import static_sweep
from experiments.training import fp16, tasks
from experiments.training.loop import FP32, static
from experiments.training.what_fp16_did import backward_passes
from tests.examples import examples
from tests.experiments import runs

SHORT = dataclasses.replace(
    static_sweep.SMOKE, steps=4, batch_cpu=16, static_log2=(-16, -12, 0, 8, 20)
)


def fresh(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return runs.fresh(static_sweep, arm, seed, SHORT, **changes)


def gradients(k: int, batch: int = 8) -> tuple[tasks.Task, tasks.Batch, torch.Tensor]:
    """A task, and the first step of its arm `static 2^k`."""
    task = tasks.make("resnet", 0, "cpu", batch)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.0)
    (step,) = static(k).train(task, optimizer, 1)
    return task, step.batch, step.gradient


# -----------------------------------------------------------------------------------------------
# what is recorded


def test_backward_passes_match_arm_gradients() -> None:
    task, batch, _ = gradients(0)
    before = fp16.flat_gradient(task.model)
    logs = (-14, -4, 0, 10, 24)
    asked = backward_passes(task, batch, [2.0**k for k in logs])
    for k, gradient in zip(logs, asked, strict=True):
        expected = gradients(k)[2]
        assert torch.equal(gradient.nan_to_num(1.5), expected.nan_to_num(1.5)), k
    assert torch.equal(
        fp16.flat_gradient(task.model), before
    )  # the optimizer sees none of it


@settings(max_examples=examples(ms=1.5))
@given(
    st.lists(st.floats(-4.0, 4.0, width=16).filter(bool), min_size=1, max_size=8),
    st.integers(0, 8),
    st.integers(-20, 20),
)
def test_pure_scaling_has_no_error(values: list[float], zeros: int, k: int) -> None:
    truth = torch.tensor([*values, *[0.0] * zeros])
    share, error = static_sweep.lost(truth * 2.0**k, truth, 2.0**k)
    assert (share, error) == (pytest.approx(zeros / len(truth)), 0)


def test_error_is_relative_norm_or_infinite() -> None:
    truth = torch.tensor([3.0, 4.0])
    assert static_sweep.lost(torch.tensor([0.0, 8.0]), truth, 2.0) == (
        0.5,
        pytest.approx(3 / 5),
    )
    for bad in (math.inf, math.nan):
        assert static_sweep.lost(torch.tensor([bad, 4.0]), truth, 1.0) == (
            0.0,
            math.inf,
        )


def test_sweep_leaves_training_unchanged() -> None:
    asked, alone = fresh("fp32"), fresh("fp32", static_log2=(3,))
    assert (asked["loss"], asked["test_loss"]) == (alone["loss"], alone["test_loss"])
    assert len(asked["largest"]) == SHORT.steps
    assert "largest" not in fresh("static 2^0", steps=1)
    assert [len(row) for row in asked["rounded_zero"]] == [
        len(SHORT.static_log2)
    ] * len(asked["counted_steps"])


def test_rounding_uses_float32_gradient() -> None:
    task = tasks.make("resnet", 0, "cpu", 8)
    (step,) = FP32.train(task, torch.optim.SGD(task.model.parameters(), lr=0.0), 1)
    asked = static_sweep.Asked((-18, 20))
    asked.add(task, step, counted=True)
    row = asked.record()
    expected = [
        ((step.gradient * 2.0**k).half() == 0).float().mean().item() for k in (-18, 20)
    ]
    assert row["rounded_zero"] == [pytest.approx(expected, rel=1e-5)]
    assert 0.01 < row["rounded_error"][0][0] < 0.5
    assert row["rounded_error"][0][1] == math.inf


# ------------------------------------------------------------------------------------------------
# what it shows


def test_backward_error_grows_at_both_ends() -> None:
    zero, error = (
        fresh("fp32", steps=1)[name][0] for name in ("backward_zero", "backward_error")
    )
    assert zero[0] > 0.9 > 0.1 > zero[1]
    assert error[1] > 0.1 > 0.03 > error[2]
    assert error[2] == pytest.approx(
        error[3], rel=0.1
    )  # between the cliffs a power of two loses next to nothing
    assert error[4] == math.inf
