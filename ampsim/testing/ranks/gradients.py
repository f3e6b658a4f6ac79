"""Where the gradients of a rank come from: set by hand, or reduced by a wrapper in a backward pass.

By hand every rank has what a scaler would see under FSDP, and ranks that are threads can do it. The
wrappers are torch's DistributedDataParallel and fully_shard, whose gradients are DTensors, and the
user's own; they need processes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ampsim.core.validation import check_choice

INF = float("inf")
Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
# wrap(model, group) -> a model whose backward pass reduces its gradients
Wrap = Callable[[nn.Module, Any], nn.Module]
Gradients = Literal["sharded", "DDP", "FSDP2"] | Wrap


class World:
    """A rank with its way to the others.

    Attributes:
        rank: Its number.
        size: Number of ranks.
        group: A torch.distributed.ProcessGroup.
        first: Returns what rank 0 passes; every rank calls it.
    """

    def __init__(self, group: Any, first: Callable[[object], Any]) -> None:
        self.rank = group.rank()
        self.size = group.size()
        self.group = group
        self.first = first


class Sharded:
    """An optimizer whose gradients are this rank's own, as under FSDP.

    Args:
        optimizer: Makes the optimizer of parameters.
        world: The rank.
        empty: Ranks without gradients.
    """

    def __init__(
        self, optimizer: Optimizer, world: World, empty: frozenset[int]
    ) -> None:
        self.world, self.is_empty = world, world.rank in empty
        self.params = self.make_params()
        self.optimizer, self.calls = optimizer(self.params), 0
        self.optimizer.register_step_pre_hook(self._called)

    def _called(self, *_: object) -> None:
        self.calls += 1

    def make_params(self) -> list[nn.Parameter]:
        """Return what the optimizer is to step."""
        return [nn.Parameter(torch.ones(shape)) for shape in ((3,), (2, 2))]

    def give(self, value: float, *, overflows: bool) -> None:
        """Leave gradients of a value; if the rank overflows, the last element is inf."""
        for param in self.params:
            param.grad = None if self.is_empty else torch.full_like(param, value)
        last = self.params[-1].grad
        if overflows and last is not None:
            last.view(-1)[-1] = INF

    def held(self) -> str:
        """Return every bit of parameters and optimizer state."""
        tensors: list[Any] = [*self.params]
        for param in self.params:
            tensors += self.optimizer.state.get(param, {}).values()
        return repr([local(tensor).tolist() for tensor in tensors])

    def has_moved(self, held: str) -> bool | None:
        """Return whether what is held has changed; None without gradients or parameters."""
        if self.is_empty or not any(local(param).numel() for param in self.params):
            return None
        return self.held() != held

    def steps(self) -> int | None:
        """Return the number of steps; None if a kernel skips them and counts nothing."""
        if not self.optimizer.defaults["fused"]:
            return self.calls
        if not isinstance(self.optimizer, torch.optim.AdamW):
            return None
        counts = [local(each["step"]) for each in self.optimizer.state.values()]
        return int(counts[0]) if counts else 0

    def finite(self) -> bool:
        """Return whether every parameter is finite."""
        return all(bool(local(param).isfinite().all()) for param in self.params)


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that is on this rank; it is all of any tensor but a DTensor."""
    part: Tensor = tensor.detach()
    return part.to_local() if hasattr(part, "to_local") else part


class WeightedSum(nn.Module):
    """The sum of all parameters, each times what its gradient is to be."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.ones(shape) for shape in shapes])

    def forward(self, factors: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.parts, factors, strict=True)
        return torch.stack([(part * factor).sum() for part, factor in pairs]).sum()


class Wrapped(Sharded):
    """An optimizer of a model in a wrapper; an empty rank adds zeros to the reduction.

    Where the wrapper shards the parameters, row r is on rank r, and an empty rank has no row.
    """

    def __init__(
        self, wrap: Wrap, optimizer: Optimizer, world: World, empty: frozenset[int]
    ) -> None:
        rows = world.size - len(empty)
        self.wrap = wrap
        self.shapes = [(rows,), (rows, 2)]
        super().__init__(optimizer, world, empty)

    def make_params(self) -> list[nn.Parameter]:
        self.model = self.wrap(WeightedSum(self.shapes), self.world.group)
        return [*self.model.parameters()]

    def give(self, value: float, *, overflows: bool) -> None:
        factor = 0.0 if self.is_empty else value
        factors = [torch.full(shape, factor) for shape in self.shapes]
        if overflows:
            factors[-1][self.world.rank] = INF
        self.optimizer.zero_grad()
        self.model(factors).backward()


def distributed_data_parallel(model: nn.Module, group: Any) -> nn.Module:
    """Wrap a model in DistributedDataParallel."""
    return nn.parallel.DistributedDataParallel(model, process_group=group)


def fully_shard(model: nn.Module, group: Any) -> nn.Module:
    """Shard a model by FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (group.size(),)))
    return model


WRAPPERS: dict[str, Wrap] = {"DDP": distributed_data_parallel, "FSDP2": fully_shard}


MakeOwner = Callable[[Optimizer, World, frozenset[int]], Sharded]


def owner_of(gradients: Gradients) -> MakeOwner:
    """Return what makes an optimizer with these gradients."""
    if callable(gradients):
        return partial(Wrapped, gradients)
    check_choice("gradients", gradients, ("sharded", *WRAPPERS))
    if gradients == "sharded":
        return Sharded
    return partial(Wrapped, WRAPPERS[gradients])
