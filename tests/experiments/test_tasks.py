"""Every task gives its model what it reads and says what it should answer; the stream is the
seed's.
"""

import math

import pytest
import torch
from torch import Tensor

from experiments.models.vit import ViT
from experiments.training import loop, photos_data, tasks

NAMES = list(tasks.MAKERS)
PHOTO_TASKS = ("resnet32", "vit")
TEST = photos_data.load("cpu").test


def same(a: tasks.Batch, b: tasks.Batch) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def scaled_gradient(task: tasks.Task) -> Tensor:
    """The gradient at scale 2^16, computed in fp16."""
    with torch.autocast("cpu", dtype=torch.float16):
        loss = task.loss()
    return torch.cat(
        [
            g.flatten()
            for g in torch.autograd.grad(loss * 2.0**16, list(task.model.parameters()))
        ]
    )


@pytest.mark.parametrize("name", NAMES)
def test_seed_determines_weights_and_batches(name: str) -> None:
    first, again, other = (tasks.make(name, seed, "cpu", 3) for seed in (0, 0, 1))
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True)
    )
    batches = [[task.draw() for _ in range(3)] for task in (first, again, other)]
    assert all(map(same, batches[0], batches[1]))
    assert not any(map(same, batches[0], batches[2]))
    assert not same(batches[0][0], batches[0][1])
    assert same(first.test, other.test)


@pytest.mark.parametrize("name", NAMES)
def test_task_loss_is_finite_and_falls(name: str) -> None:
    task = tasks.make(name, 0, "cpu", 8)
    x, y = task.draw()
    assert (len(x), len(y)) == (8, 8)
    before = task.test_loss()
    assert math.isfinite(before)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=1e-3, fused=True)
    losses = []
    for _ in range(12):  # on one batch
        optimizer.zero_grad()
        loss = task.criterion(task.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert task.test_loss() != before


def test_rotated_crop_rotates_back() -> None:
    x, quarters = tasks.make("resnet32", 0, "cpu", 4).test
    plain = photos_data.spaced(TEST, len(x), 32)
    for crop, turned, k in zip(plain, x, quarters.tolist(), strict=True):
        assert torch.equal(turned.rot90(-k, (1, 2)), crop)
    assert quarters.bincount().tolist() == [32] * 4
    drawn = torch.cat(
        [tasks.make("resnet32", seed, "cpu", 64).draw()[1] for seed in range(3)]
    )
    assert set(drawn.tolist()) == {0, 1, 2, 3}


def test_vit_input_hides_half_the_patches() -> None:
    shown, whole = tasks.make("vit", 0, "cpu", 4).test
    assert shown.shape == whole.shape == (128, 3, 32, 32)
    assert torch.equal(whole, 4 * (photos_data.spaced(TEST, 128, 32) - 0.5))
    patches = (
        (shown == whole).unfold(2, 8, 8).unfold(3, 8, 8)
    )  # (crops, colours, 4, 4, 8, 8)
    kept = patches.all(dim=5).all(dim=4).all(dim=1)
    hidden = (
        (shown == 0).unfold(2, 8, 8).unfold(3, 8, 8).all(dim=5).all(dim=4).all(dim=1)
    )
    assert (kept ^ hidden).all()  # each patch wholly
    assert 0.45 < kept.float().mean() < 0.55
    assert 0.3 < whole.std() < 3


def test_vit_sum_loss_overflows_fp16() -> None:
    task = tasks.make("vit", 0, "cpu", 16)
    a, b = torch.randn(2, 4, 3, 32, 32)
    assert task.criterion(a, b).item() == pytest.approx(
        (a - b).square().sum().item(), rel=1e-5
    )
    assert isinstance(task.model, ViT)
    assert not scaled_gradient(task).isfinite().all()
    for name in ("gpt", "resnet"):
        assert scaled_gradient(tasks.make(name, 0, "cpu", 8)).isfinite().all()


@pytest.mark.parametrize("name", PHOTO_TASKS)
def test_photo_tasks_train_in_fp16(name: str) -> None:
    task = tasks.make(name, 0, "cpu", 2)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=1e-3, fused=True)
    steps = list(
        (loop.dynamic(init_log2=2) if name == "vit" else loop.UNSCALED).train(
            task, optimizer, 8
        )
    )
    assert not steps[-1].found_inf
    assert all(math.isfinite(step.loss) for step in steps)
