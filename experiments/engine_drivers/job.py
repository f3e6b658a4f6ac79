"""What an engine trains, and what a run ends with."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Job:
    """What one rank trains on: `batches[start:stop]`, from the checkpoint in `folder` unless start
    is 0.
    """

    batches: tuple[Batch, ...]
    scale: float
    clip: float  # maximum norm; 0 turns clipping off
    folder: Path
    start: int = 0
    stop: int = 0
    interval: int = 2000  # finite steps after which the scale grows


@dataclass(frozen=True)
class Result:
    """What a run ended with: whole parameters, and the optimizer state that this rank has."""

    parameters: list[Tensor]
    momenta: list[Tensor]
    scale: float


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def tiny() -> nn.Sequential:
    """Return a network with fixed weights.

    The first layer has one unit, which an infinite input saturates: the loss stays finite, and only
    the first weight gets a gradient of NaN. The weights are exact in fp16, so engines with fp16
    parameters start from the same values.
    """
    torch.manual_seed(0)
    layers = (nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    return nn.Sequential(*layers).half().float()


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return an optimizer whose step shows any factor in a gradient, as Adam's does not."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    loss: Tensor = (model(inputs).float() - targets).square().mean()
    return loss


def scaler_for(job: Job) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(
        "cpu", init_scale=job.scale, growth_interval=job.interval
    )


def half() -> torch.autocast:
    return torch.autocast("cpu", torch.float16)


def replicated(model: nn.Module) -> nn.Module:
    """Return the model, in DistributedDataParallel if there are several ranks."""
    return DistributedDataParallel(model) if ranks() > 1 else model


def sharded(model: nn.Module, reduce_dtype: torch.dtype | None = None) -> Any:
    """Return the model as FSDP2 shards it, in fp16; the default reduces gradients in fp16 too."""
    policy = MixedPrecisionPolicy(torch.float16, reduce_dtype)
    return fully_shard(
        model, mesh=init_device_mesh("cpu", (ranks(),)), mp_policy=policy
    )


def result(parameters: Iterable[Any], optimizer: Any, scale: float) -> Result:
    states = [state.get("momentum_buffer") for state in optimizer.state.values()]
    momenta = [value for value in states if value is not None]
    return Result(
        [copied(value) for value in parameters],
        [copied(value) for value in momenta],
        scale,
    )


def copied(value: Any) -> Tensor:
    """Return a float32 copy of a tensor, whole if it is sharded."""
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach().float().clone()
