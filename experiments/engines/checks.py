"""What every engine must satisfy, whatever its interface."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from experiments.engines.drivers import Batch, Job, Result, plain

Train = Callable[[Job], Result]
Check = Callable[[Train], bool]
SCALES = (2.0**6, 2.0**12)
CLIP = 0.125  # far below the gradient norm of the batches


def batches(count: int) -> tuple[Batch, ...]:
    draw = torch.Generator().manual_seed(1)
    return tuple(
        (torch.randn(4, 4, generator=draw), torch.randn(4, 1, generator=draw) + 2.0)
        for _ in range(count)
    )


OVERFLOW: Batch = (torch.ones(4, 4), torch.full((4, 1), float("inf")))


def run(
    train: Train, given: Sequence[Batch], scale: float = SCALES[1], clip: float = 0.0
) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return train(Job(tuple(given), scale, clip, Path(folder), 0, len(given)))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def same(one: Result, other: Result) -> bool:
    """Return whether parameters, momenta, and scale are equal to the bit."""
    return one.scale == other.scale and same_state(one, other)


def same_state(one: Result, other: Result) -> bool:
    pairs = ((one.parameters, other.parameters), (one.momenta, other.momenta))
    return all(torch.equal(flat(a), flat(b)) if a else not b for a, b in pairs)


def updates_agree(train: Train, clip: float) -> bool:
    """Return whether one update is float32's at each scale, up to what fp16 rounds."""
    given = batches(1)
    start = flat(run(plain, ()).parameters)
    wanted = flat(run(plain, given, clip=clip).parameters) - start
    for scale in SCALES:
        made = flat(run(train, given, scale, clip).parameters) - start
        if (made - wanted).norm() > 0.02 * wanted.norm():
            return False
    return True


def gradients_do_not_depend_on_loss_scale(train: Train) -> bool:
    return updates_agree(train, 0.0)


def clipping_does_not_depend_on_loss_scale(train: Train) -> bool:
    return updates_agree(train, CLIP)


def skipped_step_changes_nothing(train: Train) -> bool:
    """Return whether an overflow leaves parameters and momenta as they were, and lowers the scale."""
    before, after = batches(2)
    without, skipped = run(train, (before,)), run(train, (before, OVERFLOW))
    later, resumed = run(train, (before, after)), run(train, (before, OVERFLOW, after))
    lowered = skipped.scale < without.scale
    return lowered and same_state(without, skipped) and same_state(later, resumed)


def resume_is_exact(train: Train) -> bool:
    """Return whether a checkpoint after an overflow continues to the bit, with its loss scale."""
    first, second, third, fourth = batches(4)
    given = (first, OVERFLOW, second, third, fourth)
    whole = run(train, given)
    with tempfile.TemporaryDirectory() as folder:
        train(Job(given, SCALES[1], 0.0, Path(folder), 0, 3))
        return same(whole, train(Job(given, SCALES[1], 0.0, Path(folder), 3, len(given))))


CHECKS = (
    gradients_do_not_depend_on_loss_scale,
    clipping_does_not_depend_on_loss_scale,
    skipped_step_changes_nothing,
    resume_is_exact,
)
