"""The search for a threshold finds it, and sees what parameters' gradients do not show."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from experiments.training import fp16, tasks
from experiments.training.thresholds import HIGHEST, LOWEST, search, threshold


@given(
    true=st.floats(LOWEST + 1, HIGHEST - 0.01),
    start=st.integers(LOWEST, HIGHEST),
    halvings=st.integers(0, 6),
)
@example(true=3.0, start=3, halvings=2)
def test_search_finds_threshold_from_any_start(
    true: float, start: int, halvings: int
) -> None:
    found = search(lambda bits: bits <= true, start, halvings)
    if halvings:
        assert abs(found - true) <= 2.0 ** -(halvings + 1)
    else:
        assert found == math.floor(true)


@pytest.mark.parametrize("halvings", [0, 3])
def test_missing_thresholds_are_infinite(halvings: int) -> None:
    assert search(lambda bits: True, 16, halvings) == math.inf
    assert search(lambda bits: False, 16, halvings) == -math.inf


def test_search_tries_only_needed_scales() -> None:
    tried: list[float] = []
    search(lambda bits: bool(tried.append(bits)) or bits <= 18.3, 16, 3)  # type: ignore[func-returns-value]
    assert tried == [16, 17, 18, 19, 18.5, 18.25, 18.375]


def make_task(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tasks.Task:
    return tasks.Task(
        model, lambda: batch, lambda out, y: (out * y).float().sum(), batch
    )


def test_threshold_matches_known_gradient() -> None:
    model = nn.Linear(1, 1, bias=False)
    batch = torch.tensor([[3.0]]), torch.tensor([[1.0]])  # the gradient is 3
    task = make_task(model, batch)
    for near in (-math.inf, 0.0, 30.0, math.inf):
        assert threshold(task, batch, near) == math.floor(math.log2(65520 / 3))
    assert threshold(task, batch, 10.0, 4) == pytest.approx(
        math.log2(65520 / 3), abs=2**-5
    )
    assert model.weight.grad is None


def test_threshold_includes_activation_gradients() -> None:
    fp16.prepare(0)
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(2.0**-10)
        model[1].weight.fill_(2.0**8)
    batch = torch.tensor([[2.0**-6]]), torch.tensor([[1.0]])
    task = make_task(model, batch)
    largest = max(g.abs().max().item() for g in torch.autograd.grad(
        task.criterion(model(batch[0]), batch[1]), list(model.parameters())))  # fmt: skip
    assert largest == 4.0  # 2^8 at the first one's output, times 2^-6
    assert threshold(task, batch, 16.0) == 7  # 2^8 * 2^7 < 65520 < 2^8 * 2^8
