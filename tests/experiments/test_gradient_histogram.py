"""The histograms are of all gradients there are, and both curves mean what they say."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.core.formats import FP16
from ampsim.probe import Histogram
from experiments import gradient_histogram
from experiments.training import gradient_snapshots, tasks
from experiments.training.gradient_snapshots import probed, snapshots
from experiments.training.what_fp16_did import backward_passes, compare
from tests.experiments import runs

INF = math.inf


def fresh(arm: str, seed: int = 0) -> dict[str, Any]:
    return runs.fresh(gradient_histogram, arm, seed)


def small(name: str) -> tuple[tasks.Task, tasks.Batch]:
    task = tasks.make(name, 0, "cpu", 2)
    return task, task.draw()


def counted(entry: list[int]) -> int:
    zeros, *binades = entry
    return zeros + sum(binades[1:])


# --------------------------------------------------------------------------------------------------
# histograms


@pytest.mark.parametrize("arm", gradient_snapshots.ARMS)
def test_every_gradient_element_is_counted_once(arm: str) -> None:
    row = fresh(arm)
    task = tasks.make(gradient_snapshots.CASES["cpu"][arm].task, 0, "cpu", 1)
    assert (
        len(row["layers"])
        == len(set(row["layers"]))
        == len(row["parameters"][0])
        == len(row["activations"][0])
    )
    assert sum(map(counted, row["parameters"][0])) == sum(
        p.numel() for p in task.model.parameters()
    )
    assert all(map(counted, row["activations"][0]))  # no layer without


def test_histograms_use_float32_gradients() -> None:
    task, (x, y) = small("gpt")
    rows = {(row.kind, row.name): row.histogram for row in probed(task, (x, y))}
    names, parameters = zip(*task.model.named_parameters(), strict=True)
    logits = task.model(x)
    *gradients, of_logits = torch.autograd.grad(
        task.criterion(logits, y), [*parameters, logits]
    )
    for name, gradient in zip(names, gradients, strict=True):
        assert (
            rows["parameter", name].counts == Histogram.of(gradient).counts
        ).all(), name
    assert (
        rows["activation", gradient_snapshots.OUTPUT].largest
        == of_logits.abs().max().item()
    )
    again = {
        (row.kind, row.name): row.histogram for row in probed(task, (x, y))
    }  # nothing piles up
    assert all((again[key].counts == rows[key].counts).all() for key in rows)


def test_compact_histogram_starts_at_lowest_binade() -> None:
    values = torch.tensor([0.0, -0.0, 2.0**-30, -3.0, 2.5, 1.5 * 2.0**-30])
    zeros, lowest, *counts = gradient_histogram.compact(Histogram.of(values))
    assert (zeros, lowest, counts) == (2, -30, [2, *[0] * 30, 2])
    assert gradient_histogram.compact(Histogram.of(torch.zeros(3))) == [3]


def test_snapshots_share_one_training_run() -> None:
    by_hand = tasks.make("sigmoid", 3, "cpu", 128)
    optimizer = torch.optim.Adam(
        by_hand.model.parameters(), lr=1e-2, eps=1e-15, fused=True
    )
    done = 0
    for step, task, batch in snapshots("sigmoid", 3, "cpu", [0, 2, 5]):
        for _ in range(step - done):
            optimizer.zero_grad()
            by_hand.loss().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        done = step
        pairs = zip(task.model.parameters(), by_hand.model.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        assert torch.equal(
            batch[0], by_hand.draw()[0]
        )  # a batch that is not trained on
    assert done == 5


# ------------------------------------------------------------------------------------------------------
# curves


def test_cast_loss_shares_exclude_zeros() -> None:
    truth = torch.tensor([0.0, 1.0, 2.0, -2.0])
    assert compare(truth, torch.tensor([1.0, 0.0, 8.0, -8.0]), 4.0)[:2] == (1 / 3, 0.0)
    assert compare(truth, torch.tensor([INF, 1.0, INF, math.nan]), 4.0) == (
        0.0,
        2 / 3,
        INF,
    )
    _, _, error = compare(truth, torch.tensor([0.0, 4.0, 8.0, 4.0]), 4.0)
    assert error == pytest.approx(1.0)  # (0, 0, 0, 3) from a vector of length 3
    assert compare(torch.zeros(3), torch.zeros(3), 1.0)[:2] == (0, 0)


@given(
    mean=st.integers(-40, 12),
    sigma=st.floats(0.5, 8),
    seed=st.integers(0, 99),
    k=st.integers(-30, 30),
)
@settings(deadline=None)
def test_histogram_bounds_rounding_losses(
    mean: int, sigma: float, seed: int, k: int
) -> None:
    size = torch.exp2(
        mean + sigma * torch.randn(400, generator=torch.Generator().manual_seed(seed))
    )
    flushed, overflowed, _ = compare(size, (size * 2.0**k).half(), 2.0**k)
    foretold = Histogram.of(size).lost(2.0**k, FP16)
    assert foretold.flushed.low - 1e-9 <= flushed <= foretold.flushed.high + 1e-9
    assert (
        foretold.overflowed.low - 1e-9 <= overflowed <= foretold.overflowed.high + 1e-9
    )


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_backward_passes_match_fp16_run(name: str) -> None:
    task, (x, y) = small(name)
    scales = [2.0**-14, 1.0, 2.0**10]
    for scale, gradient in zip(
        scales, backward_passes(task, (x, y), scales), strict=True
    ):
        task.model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = task.criterion(task.model(x), y)
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        alone = torch.cat(
            [p.grad.flatten() for p in task.model.parameters() if p.grad is not None]
        )
        assert torch.equal(gradient, alone)


# ----------------------------------------------------------------------------------------------------
# the data
