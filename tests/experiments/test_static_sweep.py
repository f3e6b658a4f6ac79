"""A plateau between two cliffs, whatever the exact numbers are; and what gradients tell of them."""

import dataclasses
import math
from statistics import mean, median
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import static_sweep
from experiments.training import fp16, tasks
from experiments.training.loop import FP32, static
from experiments.training.what_fp16_did import backward_passes
from figures import results
from tests.examples import examples
from tests.experiments import runs

CONFIG = static_sweep.Config()
LOGS = CONFIG.static_log2
RUN = results.load("static_sweep")
SHORT = dataclasses.replace(static_sweep.SMOKE, steps=4, batch_cpu=16, static_log2=(-16, -12, 0, 8, 20))


def fresh(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return runs.fresh(static_sweep, arm, seed, SHORT, **changes)


def final(name: str) -> float:
    return mean(row["test_loss"] for row in RUN.arm(name))


def at(k: int, column: str) -> list[float]:
    """Of the arm `fp32`, at scale 2^k: every counted step of every seed."""
    return [float(values[LOGS.index(k)]) for row in RUN.arm("fp32") for values in row[column]]


def gradients(k: int, batch: int = 8) -> tuple[tasks.Task, tasks.Batch, torch.Tensor]:
    """A task, and the first step of its arm `static 2^k`."""
    task = tasks.make("resnet", 0, "cpu", batch)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.0)
    (step,) = static(k).train(task, optimizer, 1)
    return task, step.batch, step.gradient


# ----------------------------------------------------------------------------------------------- what is recorded


def test_the_gradients_asked_for_are_those_an_arm_would_have() -> None:
    task, batch, _ = gradients(0)
    before = fp16.flat_gradient(task.model)
    logs = (-14, -4, 0, 10, 24)
    asked = backward_passes(task, batch, [2.0**k for k in logs])
    for k, gradient in zip(logs, asked, strict=True):
        expected = gradients(k)[2]
        assert torch.equal(gradient.nan_to_num(1.5), expected.nan_to_num(1.5)), k
    assert torch.equal(fp16.flat_gradient(task.model), before)  # the optimizer sees none of it


@settings(max_examples=examples(ms=1.5))
@given(
    st.lists(st.floats(-4.0, 4.0, width=16).filter(bool), min_size=1, max_size=8),
    st.integers(0, 8),
    st.integers(-20, 20),
)
def test_a_gradient_that_is_only_scaled_has_lost_nothing_but_its_zeros(values: list[float], zeros: int, k: int) -> None:
    truth = torch.tensor([*values, *[0.0] * zeros])
    share, error = static_sweep.lost(truth * 2.0**k, truth, 2.0**k)
    assert (share, error) == (pytest.approx(zeros / len(truth)), 0)


def test_what_is_lost_is_the_length_of_the_difference_and_not_finite_is_infinite() -> None:
    truth = torch.tensor([3.0, 4.0])
    assert static_sweep.lost(torch.tensor([0.0, 8.0]), truth, 2.0) == (0.5, pytest.approx(3 / 5))
    for bad in (math.inf, math.nan):
        assert static_sweep.lost(torch.tensor([bad, 4.0]), truth, 1.0) == (0.0, math.inf)


def test_asking_changes_no_training_and_only_float32_is_asked() -> None:
    asked, alone = fresh("fp32"), fresh("fp32", static_log2=(3,))
    assert (asked["loss"], asked["test_loss"]) == (alone["loss"], alone["test_loss"])
    assert len(asked["largest"]) == SHORT.steps
    assert "largest" not in fresh("static 2^0", steps=1)
    assert [len(row) for row in asked["rounded_zero"]] == [len(SHORT.static_log2)] * len(asked["counted_steps"])


def test_rounding_once_is_asked_of_the_true_gradient() -> None:
    task = tasks.make("resnet", 0, "cpu", 8)
    (step,) = FP32.train(task, torch.optim.SGD(task.model.parameters(), lr=0.0), 1)
    asked = static_sweep.Asked((-18, 20))
    asked.add(task, step, counted=True)
    row = asked.record()
    expected = [((step.gradient * 2.0**k).half() == 0).float().mean().item() for k in (-18, 20)]
    assert row["rounded_zero"] == [pytest.approx(expected, rel=1e-5)]
    assert 0.01 < row["rounded_error"][0][0] < 0.5
    assert row["rounded_error"][0][1] == math.inf


def test_every_arm_starts_from_the_same_weights_and_batch() -> None:
    for seed in CONFIG.seeds:
        rows = [row for row in RUN.records if row["seed"] == seed]
        (first,) = {row["loss"][0] for row in rows if row["arm"] != "fp32"}
        assert first == pytest.approx(rows[0]["loss"][0], rel=1e-2)


# ------------------------------------------------------------------------------------------------ what it shows


def test_left_of_the_left_cliff_gradients_are_zero_and_nothing_is_learnt() -> None:
    for k in (-16, -15, -14):
        assert final(f"static 2^{k}") > final("fp32") + 1
        assert min(mean(row["zero"]) for row in RUN.arm(f"static 2^{k}")) > 0.5
    assert final("static 2^-13") > final("static 2^-12") > final("static 2^-10")


def test_right_of_the_right_cliff_steps_are_skipped_and_nothing_is_learnt() -> None:
    skips = [mean(len(row["found_inf"]) for row in RUN.arm(f"static 2^{k}")) for k in (14, 16, 17, 18, 20)]
    assert skips == sorted(skips)
    assert skips[0] < 3
    assert skips[-1] == CONFIG.steps
    assert final("static 2^20") > final("static 2^18") > final("static 2^17") > final("fp32") + 0.2


def test_where_every_step_is_skipped_the_network_stays_as_it_was() -> None:
    for high, higher in zip(RUN.arm("static 2^20"), RUN.arm("static 2^24"), strict=True):
        assert (high["loss"], high["test_loss"]) == (higher["loss"], higher["test_loss"])


def test_rounding_the_true_gradient_tells_of_the_right_cliff_and_not_of_the_left() -> None:
    largest = [x for row in RUN.arm("fp32") for x in row["largest"]]
    over = {k: mean(x * 2.0**k >= 65520 for x in largest) for k in LOGS}
    assert over[14] < 0.02
    assert over[20] > 0.98
    assert 0.05 < over[17] < 0.95
    for k in (-16, -14, -13, -12):
        assert median(at(k, "backward_error")) > 10 * median(at(k, "rounded_error"))
    assert mean(at(-16, "rounded_zero")) < 0.5 < mean(at(-16, "backward_zero"))


def test_at_the_left_cliff_few_elements_are_zero_and_the_gradient_is_wrong_all_the_same() -> None:
    assert mean(at(-12, "backward_zero")) < 0.1
    assert median(at(-12, "backward_error")) > 0.1
    assert median(at(0, "backward_error")) < 0.03


def test_a_fresh_backward_pass_loses_at_either_end() -> None:
    zero, error = (fresh("fp32", steps=1)[name][0] for name in ("backward_zero", "backward_error"))
    assert zero[0] > 0.9 > 0.1 > zero[1]
    assert error[1] > 0.1 > 0.03 > error[2]
    assert error[2] == pytest.approx(error[3], rel=0.1)  # between the cliffs a power of two loses next to nothing
    assert error[4] == math.inf
