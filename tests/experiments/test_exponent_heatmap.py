"""The truth beside an fp16 run: what is counted, that looking disturbs nothing, and what the
committed runs show.
"""

import dataclasses
import math
from typing import Any

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
from tests.examples import examples
from tests.experiments import runs

ELEMENTS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples at each step."""
    for name, case in CASES.items():
        monkeypatch.setitem(CASES, name, dataclasses.replace(case, every=1))


def fresh(
    arm: str, steps: int, seed: int = 0, seeds: tuple[int, ...] = (0,)
) -> dict[str, Any]:
    return runs.fresh(exponent_heatmap, arm, seed, steps=steps, seeds=seeds)


# ---------------------------------------------------------------------------------- what is counted


@settings(max_examples=examples(ms=2))
@given(st.lists(ELEMENTS, min_size=1))
def test_counts_match_nonempty_binades(
    values: list[float],
) -> None:
    counts = nonempty(Histogram.of(torch.tensor(values)))
    exponents = [math.frexp(value)[1] - 1 for value in values if value]
    if not exponents:
        assert counts == []
        return
    assert counts[0] == min(exponents)
    assert counts[1:] == [
        exponents.count(e) for e in range(min(exponents), max(exponents) + 1)
    ]


# ------------------------------------------------------------------------------------------------
# the runs


def truth_of_first_step(arm: str) -> Tensor:
    """In float32, from scratch."""
    case = CASES[arm]
    task = tasks.make(case.task, 0, "cpu", case.batch)
    factor = case.factor(
        case.batch * tasks.GPT_TINY.context, exponent_heatmap.GLOBAL_TOKENS
    )
    gradients = torch.autograd.grad(task.loss() * factor, list(task.model.parameters()))
    return flat(gradients)


@pytest.mark.parametrize("arm", list(CASES))
def test_reference_is_float32_gradient(arm: str) -> None:
    row = fresh(arm, steps=1)
    truth = truth_of_first_step(arm)
    assert row["counts"][0] == nonempty(Histogram.of(truth))
    assert row["elements"] == len(truth)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("arm", ["sigmoid dynamic", "residual dynamic"])
def test_sampling_leaves_training_unchanged(arm: str) -> None:
    row, case = fresh(arm, steps=6), CASES[arm]
    task = tasks.make(case.task, 0, "cpu", case.batch)
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=case.lr, eps=case.eps, fused=True
    )
    scales, found_inf = zip(
        *((step.scale, step.found_inf) for step in case.train(task, optimizer, 6)),
        strict=True,
    )
    assert row["scale_changes"] == series.changes(scales)
    assert row["found_inf"] == [step for step, flag in enumerate(found_inf) if flag]


# ------------------------------------------------------------------------------------------------
# what it shows
