"""Check an fp16 pipeline on your own stages: call `problems` on each rank.

The stages train in fp16 at two loss scales, and one process trains them in float32 without a
scaler.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Train = Callable[[nn.Module, Sequence[Batch], float, float], float]
Loss = Callable[[Tensor, Tensor], Tensor]
SCALES = (2.0**6, 2.0**10)


def problems(
    train: Train,
    make_stages: Callable[[], list[nn.Module]],
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    loss: Loss,
    batches: Sequence[Batch],
    overflow: Batch,
    max_norm: float,
) -> list[str]:
    """Return what is wrong with this rank's stage.

    Args:
        train: Trains this rank's stage: `train(stage, batches, scale, max_norm)` returns the loss
            scale at the end.
        make_stages: Returns all stages, one per rank, with the same weights at each call.
        make_optimizer: Returns the optimizer that `train` uses. SGD shows wrong factors, Adam does
            not.
        loss: Mean loss of a batch, `loss(outputs, targets)`, a scalar tensor.
        batches: Batches without an overflow at a loss scale of 1024.
        overflow: A batch that overflows in at least one stage at a loss scale of 1024.
        max_norm: Maximum gradient norm over all stages, positive.

    Returns:
        list[str]: One line per problem; empty if there is none.
    """
    rank, found = dist.get_rank(), []
    start = parameters(make_stages()[rank])
    alone = make_stages()
    model = nn.Sequential(*alone)
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:  # float32, one process, no scaler
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    expected = parameters(alone[rank])
    for scale in SCALES:
        stage = make_stages()[rank]
        train(stage, batches, scale, max_norm)
        if (parameters(stage) - expected).norm() > 0.02 * (expected - start).norm():
            found.append(f"loss scale {scale:g}: the update differs from float32's")
    without, skipped = make_stages()[rank], make_stages()[rank]
    train(without, batches, SCALES[1], max_norm)
    lowered = train(skipped, [*batches, overflow], SCALES[1], max_norm)
    if not torch.equal(parameters(without), parameters(skipped)):
        found.append("an overflow changes this stage")
    if lowered >= SCALES[1]:
        found.append(f"an overflow leaves the loss scale at {lowered:g}")
    return found


def parameters(stage: nn.Module) -> Tensor:
    """Return the parameters of a stage as one tensor."""
    return nn.utils.parameters_to_vector(stage.parameters()).detach().clone()
