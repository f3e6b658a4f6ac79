"""Where the gradients of a rank come from: they are set by hand, or reduced by a wrapper in a
backward pass.

By hand every rank has what a scaler would see under a wrapper, and threads can do it. The wrappers
are DistributedDataParallel, FSDP2's fully_shard, whose gradients are DTensors, and the user's own.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ampsim.core.validation import check_choice

INF = float("inf")
Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class World:
    """A rank with its way to the others.

    Attributes:
        rank, size: its number, and how many there are.
        group: a torch.distributed.ProcessGroup.
        first: returns what rank 0 passes; every rank calls it.
    """

    def __init__(self, group: Any, first: Callable[[object], Any]) -> None:
        self.rank, self.size, self.group, self.first = (
            group.rank(),
            group.size(),
            group,
            first,
        )


class Sharded:
    """An optimizer with gradients of this rank's own, as under FSDP; those of an empty rank have no
    gradients.
    """

    on_threads: ClassVar[bool] = True  # whether ranks that are threads can have it

    def __init__(self, optimizer: Optimizer, world: World, *, empty: bool) -> None:
        self.world = world
        self.own(
            [nn.Parameter(torch.ones(shape)) for shape in ((3,), (2, 2))], optimizer
        )

    def own(self, params: list[nn.Parameter], optimizer: Optimizer) -> None:
        """Give these parameters an optimizer, and begin to count its steps."""
        self.params, self.optimizer, self.calls = params, optimizer(params), 0
        self.optimizer.register_step_pre_hook(self._called)

    def _called(self, *_: object) -> None:
        self.calls += 1

    def give(self, value: float, *, bad: bool, empty: bool) -> None:
        """Leave gradients of a value, with an inf in the last one if `bad`; none if this rank is
        empty.
        """
        for param in self.params:
            param.grad = None if empty else torch.full_like(param, value)
        if bad and (last := self.params[-1].grad) is not None:
            last.view(-1)[-1] = INF

    def held(self) -> list[object]:
        """Return every bit of parameters and optimizer state."""
        state = [self.optimizer.state.get(param, {}) for param in self.params]
        return [
            *map(bits, self.params),
            *(bits(each[name]) for each in state for name in sorted(each)),
        ]

    def elements(self) -> int:
        """Return how many elements of parameters are on this rank."""
        return sum(local(param).numel() for param in self.params)

    def finite(self) -> bool:
        """Return whether every parameter is finite."""
        return all(bool(local(param).isfinite().all()) for param in self.params)


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that is on this rank, which of any but a DTensor is all of it."""
    part: Tensor = tensor.detach()
    return part.to_local() if hasattr(part, "to_local") else part


def bits(value: object) -> object:
    """Return a tensor as its bytes, whatever its dtype, and any other value as it is."""
    if isinstance(value, Tensor):
        return local(value).reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
    return value


class Sum(nn.Module):
    """The sum of all parameters, each times what its gradient is to be."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.ones(shape) for shape in shapes])

    def forward(self, factors: Sequence[Tensor]) -> Tensor:
        return torch.stack(
            [
                (part * factor).sum()
                for part, factor in zip(self.parts, factors, strict=True)
            ]
        ).sum()


class DDP(Sharded):
    """An optimizer of a model in DistributedDataParallel; an empty rank adds zeros to the mean."""

    def __init__(self, optimizer: Optimizer, world: World, *, empty: bool) -> None:
        self.world = world
        self.shapes = self._shapes(empty=empty)
        self.model = self._wrapped(Sum(self.shapes))
        self.own([*self.model.parameters()], optimizer)

    def _shapes(self, *, empty: bool) -> list[tuple[int, ...]]:
        return [(3,), (self.world.size, 2)]

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return nn.parallel.DistributedDataParallel(
            model, process_group=self.world.group
        )

    def give(self, value: float, *, bad: bool, empty: bool) -> None:
        factors = [torch.full(shape, 0.0 if empty else value) for shape in self.shapes]
        if bad:
            factors[-1][self.world.rank] = INF
        self.optimizer.zero_grad()
        self.model(factors).backward()


class FSDP2(DDP):
    """An optimizer of DTensors, as fully_shard leaves them: row r is on rank r, an empty rank has
    no row.
    """

    on_threads = False

    def _shapes(self, *, empty: bool) -> list[tuple[int, ...]]:
        rows = self.world.size - empty
        return [(rows,), (rows, 2)] if empty else [(3,), (rows, 2)]

    def _wrapped(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (self.world.size,)))
        return model

    def give(self, value: float, *, bad: bool, empty: bool) -> None:
        super().give(value, bad=bad, empty=False)


Wrap = Callable[
    [nn.Module, Any], nn.Module
]  # wrap(model, group) -> a model whose backward reduces its gradients
Gradients = Literal["sharded", "DDP", "FSDP2"] | Wrap
KINDS: dict[str, type[Sharded]] = {"sharded": Sharded, "DDP": DDP, "FSDP2": FSDP2}


def kind_of(gradients: Gradients) -> type[Sharded]:
    """Return the class of these gradients."""
    if not callable(gradients):
        check_choice("gradients", gradients, (*KINDS,))
        return KINDS[gradients]
    wrap = gradients

    class Wrapped(DDP):
        """An optimizer of a model in the user's wrapper."""

        on_threads = (
            False  # it may ask for more than the collectives of `threads.Group`
        )

        def _wrapped(self, model: nn.Module) -> nn.Module:
            return wrap(model, self.world.group)

    return Wrapped
