"""Train two pipeline stages in fp16 with dynamic loss scaling: `torchrun --nproc-per-node 2
pipeline.py`.

The schedule calls backward, so the scale goes into the loss function that the schedule gets. The
loop unscales after the last micro-batch, and all stages share one found_inf.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

MICRO_BATCHES = 4
SCHEDULES: dict[str, Any] = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


class HalfStage(nn.Module):
    """A layer that computes in fp16 from float32 weights."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):  # on a GPU: "cuda"
            return self.layer(inputs).float()


class PipelineScaler(torch.amp.GradScaler):
    """A GradScaler whose stages step together or skip together."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for found_inf in self._found_inf_per_device(optimizer).values():
            dist.all_reduce(found_inf, dist.ReduceOp.MAX)


def layers() -> list[nn.Module]:
    """Return the layer of each stage, with fixed weights."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)]


def clip(parameters: list[nn.Parameter], max_norm: float) -> None:
    """Clip by the norm over all stages."""
    squares = torch.stack(
        [parameter.grad.square().sum() for parameter in parameters]
    ).sum()
    dist.all_reduce(squares)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, squares.sqrt())


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean square error, a scalar."""
    return (outputs - targets).square().mean()


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a stage."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(
    name: str,
    layer: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    scale: float,
    max_norm: float,
) -> float:
    """Train this rank's stage in place, and return the loss scale."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    module = HalfStage(layer)
    optimizer = sgd(module.parameters())
    scaler = PipelineScaler("cpu", init_scale=scale)

    def scaled_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return scaler.scale(loss(outputs, targets))

    stage = PipelineStage(module, rank, last + 1, torch.device("cpu"))
    schedule = SCHEDULES[name](
        stage, MICRO_BATCHES, loss_fn=scaled_loss, scale_grads=True
    )
    for inputs, targets in batches:
        optimizer.zero_grad()
        scaler.scale(torch.zeros(()))  # the first call creates the scale, on each stage
        if rank == 0:
            schedule.step(inputs)
        elif rank == last:
            schedule.step(target=targets)
        scaler.unscale_(optimizer)  # once, after the last micro-batch
        clip(list(module.parameters()), max_norm)
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


def main() -> None:
    """Train three steps with each schedule."""
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator))
    ]
    for name in SCHEDULES:
        scale = train(name, layers()[dist.get_rank()], batches * 3, 1024.0, 1.0)
        print(f"rank {os.environ['RANK']}, {name}: loss scale {scale:g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
