"""What every engine must satisfy, whatever its interface, on one rank and on several."""

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from experiments.engine_drivers.job import Batch, Job, Result, rank, ranks
from experiments.engine_drivers.torch_loops import float32

Train = Callable[[Job], Result]
Check = Callable[[Train], bool]
SCALES = (2.0**6, 2.0**12)
CLIP = 0.125  # far below the gradient norm of the batches
TOO_LARGE = 2.0**24  # a loss scale at which the gradients overflow
BACKOFFS = 16  # more than from TOO_LARGE to where the scale settles


def batches(count: int) -> tuple[Batch, ...]:
    draw = torch.Generator().manual_seed(1)
    return tuple(
        (torch.randn(4, 4, generator=draw), torch.randn(4, 1, generator=draw) + 2.0)
        for _ in range(count)
    )


def overflow() -> Batch:
    """Return a batch with a finite loss and one gradient of NaN: see `tiny`."""
    inputs, targets = batches(1)[0]
    inputs[:, 0] = math.inf
    return inputs, targets


def run(
    train: Train,
    given: Sequence[Batch],
    scale: float = SCALES[1],
    clip: float = 0.0,
    **options: int,
) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        return train(Job(tuple(given), scale, clip, place, 0, len(given), **options))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def same(one: Result, other: Result) -> bool:
    """Return whether parameters, momenta, and scale are equal to the bit."""
    return one.scale == other.scale and same_state(one, other)


def same_state(one: Result, other: Result) -> bool:
    pairs = ((one.parameters, other.parameters), (one.momenta, other.momenta))
    return all(torch.equal(flat(a), flat(b)) if a else not b for a, b in pairs)


def shard(batch: Batch) -> Batch:
    """Return the rows of this rank."""
    inputs, targets = batch
    return inputs[rank() :: ranks()], targets[rank() :: ranks()]


def skipped_batch() -> Batch:
    """Return this rank's rows of a batch that overflows on the last rank alone."""
    return shard(overflow() if rank() == ranks() - 1 else batches(1)[0])


def updates_agree(train: Train, clip: float) -> bool:
    """Return whether one update is float32's at each scale, up to what fp16 rounds.

    Each rank has a part of the batch; float32 trains in one process on the whole batch.
    """
    given = batches(1)
    start = flat(run(float32, ()).parameters)
    expected = flat(run(float32, given, clip=clip).parameters) - start
    for scale in SCALES:
        made = flat(run(train, [shard(given[0])], scale, clip).parameters) - start
        if (made - expected).norm() > 0.02 * expected.norm():
            return False
    return True


def gradients_do_not_depend_on_loss_scale(train: Train) -> bool:
    return updates_agree(train, 0.0)


def clipping_does_not_depend_on_loss_scale(train: Train) -> bool:
    return updates_agree(train, CLIP)


def growing_scale_leaves_gradients_whole(train: Train) -> bool:
    """Return whether steps in which the scale grows end where a constant scale ends."""
    given = [shard(batch) for batch in batches(4)]
    start = flat(run(float32, ()).parameters)
    constant = run(train, given, SCALES[0])
    growing = run(train, given, SCALES[0], interval=1)
    moved = flat(constant.parameters) - start
    apart = flat(growing.parameters) - flat(constant.parameters)
    return growing.scale > constant.scale and bool(apart.norm() <= 0.02 * moved.norm())


def skipped_step_changes_nothing(train: Train) -> bool:
    """Return whether an overflow leaves parameters and momenta as they were, and lowers the scale."""
    before, after = map(shard, batches(2))
    skip = skipped_batch()
    without, skipped = run(train, (before,)), run(train, (before, skip))
    later, resumed = run(train, (before, after)), run(train, (before, skip, after))
    lowered = skipped.scale < without.scale
    return lowered and same_state(without, skipped) and same_state(later, resumed)


def resume_is_exact(train: Train) -> bool:
    """Return whether a checkpoint after an overflow continues to the bit, with its loss scale."""
    first, second, third, fourth = batches(4)
    given = (first, overflow(), second, third, fourth)
    whole = run(train, given)
    with tempfile.TemporaryDirectory() as folder:
        train(Job(given, SCALES[1], 0.0, Path(folder), 0, 3))
        return same(
            whole, train(Job(given, SCALES[1], 0.0, Path(folder), 3, len(given)))
        )


def ranks_agree(train: Train) -> bool:
    """Return whether all ranks have the same parameters and scale after an overflow on one of them."""
    before, after = map(shard, batches(2))
    mine = run(train, (before, skipped_batch(), after))
    results: list[Result] = [mine] * ranks()
    dist.all_gather_object(results, mine)
    first = results[0]
    return all(
        other.scale == first.scale
        and torch.equal(flat(other.parameters), flat(first.parameters))
        for other in results
    )


def settled_scale(train: Train) -> float:
    """Return the scale at which skips end, for one batch that all ranks have."""
    return run(train, batches(1) * BACKOFFS, TOO_LARGE).scale


CHECKS = (
    gradients_do_not_depend_on_loss_scale,
    clipping_does_not_depend_on_loss_scale,
    growing_scale_leaves_gradients_whole,
    skipped_step_changes_nothing,
    resume_is_exact,
)
RANK_CHECKS = (*CHECKS[:4], ranks_agree)
