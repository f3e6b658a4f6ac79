"""The truth beside an fp16 run: what is counted, that looking disturbs nothing, and what the committed runs show."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ampsim.probe import Histogram
from experiments import exponent_heatmap
from experiments.exponent_heatmap import CASES, nonempty
from experiments.training import series, tasks
from experiments.training.what_fp16_did import flat
from figures import exponent_heatmap as figure
from figures import results
from tests.examples import examples
from tests.experiments import runs

RUN = results.load("exponent_heatmap")
ELEMENTS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples at each step."""
    for name, case in CASES.items():
        monkeypatch.setitem(CASES, name, dataclasses.replace(case, every=1))


def fresh(arm: str, steps: int, seed: int = 0, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
    return runs.fresh(exponent_heatmap, arm, seed, steps=steps, seeds=seeds)


def log2_scales(row: dict[str, Any]) -> list[float]:
    """In force at each optimizer step."""
    starts, values = zip(*row["scale_changes"], strict=True)
    steps = row["every"] * len(row["lost"])
    return [math.log2(values[sum(start <= step for start in starts) - 1]) for step in range(steps)]


# ------------------------------------------------------------------------------------------- what is counted


@settings(max_examples=examples(ms=2))
@given(st.lists(ELEMENTS, min_size=1))
def test_counts_are_those_of_the_binades_and_begin_and_end_with_one_that_is_not_empty(values: list[float]) -> None:
    counts = nonempty(Histogram.of(torch.tensor(values)))
    exponents = [math.frexp(value)[1] - 1 for value in values if value]
    if not exponents:
        assert counts == []
        return
    assert counts[0] == min(exponents)
    assert counts[1:] == [exponents.count(e) for e in range(min(exponents), max(exponents) + 1)]


# ------------------------------------------------------------------------------------------------ the runs


def truth_of_first_step(arm: str) -> Tensor:
    """In float32, from scratch."""
    case = CASES[arm]
    task = tasks.make(case.task, 0, "cpu", case.batch)
    factor = case.factor(case.batch * tasks.GPT_TINY.context, exponent_heatmap.GLOBAL_TOKENS)
    gradients = torch.autograd.grad(task.loss() * factor, list(task.model.parameters()))
    return flat(gradients)


@pytest.mark.parametrize("arm", list(CASES))
def test_the_truth_is_the_float32_gradient_of_the_same_weights_and_batch(arm: str) -> None:
    row = fresh(arm, steps=1)
    truth = truth_of_first_step(arm)
    assert row["counts"][0] == nonempty(Histogram.of(truth))
    assert row["elements"] == len(truth)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("arm", ["sigmoid dynamic", "residual dynamic"])
def test_looking_disturbs_nothing(arm: str) -> None:
    row, case = fresh(arm, steps=6), CASES[arm]
    task = tasks.make(case.task, 0, "cpu", case.batch)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=case.lr, eps=case.eps, fused=True)
    scales, found_inf = zip(*((step.scale, step.found_inf) for step in case.train(task, optimizer, 6)), strict=True)
    assert row["scale_changes"] == series.changes(scales)
    assert row["found_inf"] == [step for step, flag in enumerate(found_inf) if flag]


def test_counts_are_kept_for_the_first_seed_only_and_samples_are_steps_apart() -> None:
    row = fresh("sigmoid dynamic", steps=2, seed=1, seeds=(0, 1))
    assert row["counts"] == []
    assert len(row["lost"]) == 2
    assert len(log2_scales(row)) == 2 * row["every"]
    assert max(row["found_inf"], default=0) < 2 * row["every"]


# ------------------------------------------------------------------------------------------------ what it shows


def test_the_first_seed_alone_has_the_counts() -> None:
    seeds = exponent_heatmap.Config().seeds
    assert [bool(row["counts"]) for row in RUN.records] == [row["seed"] == seeds[0] for row in RUN.records]


def test_unscaled_a_share_of_a_global_batch_is_lost_and_rounding_does_not_tell_how_much() -> None:
    for row in RUN.arm("gpt unscaled"):
        assert np.mean(row["lost"]) > 0.8
        assert row["lost"][0] > row["rounded"][0] + 0.2  # what is flushed within the backward pass


def test_a_scale_that_climbs_brings_all_of_it_back() -> None:
    for row in RUN.arm("gpt dynamic"):
        last = len(row["lost"]) // 4
        assert row["lost"][0] > 0.8
        assert max(row["lost"][-last:]) < 0.02
        assert row["found_inf"][0] > len(log2_scales(row)) / 4  # until its window reaches the largest element
    for row in RUN.arm("sigmoid dynamic"):
        assert max(row["lost"]) < 0.05


def test_in_a_crash_the_window_passes_over_the_gradient_and_every_step_is_skipped() -> None:
    for row in RUN.arm("residual dynamic"):
        start = figure.last_streak(row)
        assert start < len(row["lost"]) / 2
        assert min(row["not_finite"][start:]) > 0.9
        assert min(row["rounded"][start:]) < 0.02  # at these scales nearly all of it fits
        assert row["rounded"][-1] > 0.98


def test_a_sampled_step_was_skipped_where_the_largest_true_element_overflows_and_else_not() -> None:
    """But for a few, in which the fp16 pass rounds to the other side."""
    wrong, samples = 0, 0
    for arm in ("gpt dynamic", "sigmoid dynamic"):
        (row,) = (row for row in RUN.arm(arm) if row["counts"])
        for sample, (lowest, *counts) in enumerate(row["counts"]):
            step = sample * row["every"]
            highest = lowest + len(counts) - 1 + log2_scales(row)[step]  # its binade, scaled
            samples += 1
            wrong += (highest >= 16) != (step in row["found_inf"])
    assert wrong <= 0.03 * samples
