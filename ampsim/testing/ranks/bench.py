"""An optimizer with real parameters, whose gradients a check sets by hand."""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import torch

Optimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def loss() -> torch.Tensor:
    """Return a loss of 1, on torch's default device as all that a check makes."""
    return torch.ones(())


def sgd(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Make SGD with momentum, so that a step with gradients of zero is seen too."""
    return torch.optim.SGD(params, lr=0.125, momentum=0.9, foreach=False)


def fused(params: list[torch.nn.Parameter], lr: float = 0.125) -> torch.optim.Optimizer:
    """Make AdamW whose kernel divides by the scale and skips by itself."""
    return torch.optim.AdamW(params, lr=lr, fused=True)


class Bench:
    """An optimizer, the parameters it owns, and how often it was called."""

    def __init__(
        self,
        optimizer: Optimizer = sgd,
        shapes: Sequence[tuple[int, ...]] = ((3,),),
        dtypes: Sequence[torch.dtype] = (torch.float32,),
    ) -> None:
        kinds = cycle(dtypes)
        self.own([torch.nn.Parameter(torch.ones(shape, dtype=next(kinds))) for shape in shapes], optimizer)

    def own(self, params: list[torch.nn.Parameter], optimizer: Optimizer) -> None:
        """Give these parameters an optimizer, and begin to count."""
        self.params = params
        self.optimizer = optimizer(self.params)
        self.calls = 0
        self.optimizer.register_step_pre_hook(self._called)

    def _called(self, *_: object) -> None:
        self.calls += 1

    def put(self, value: float, bad: float | None = None) -> None:
        """Set every element of every gradient to `value`, and the last of the last parameter's to `bad`."""
        for param in self.params:
            param.grad = torch.full_like(param, value)
        if bad is not None:
            self.grad(-1).view(-1)[-1] = bad

    def grad(self, index: int = 0) -> torch.Tensor:
        """Return the gradient of a parameter that has one."""
        grad = self.params[index].grad
        assert grad is not None  # noqa: S101
        return grad

    def held(self) -> list[object]:
        """Return every bit of parameters and optimizer state."""
        state = [self.optimizer.state.get(param, {}) for param in self.params]
        return [*map(bits, self.params), *(bits(each[name]) for each in state for name in sorted(each))]

    def finite(self) -> bool:
        """Return whether every parameter is finite."""
        return all(bool(local(param).isfinite().all()) for param in self.params)


def local(tensor: Any) -> torch.Tensor:
    """Return the part of a tensor that is on this rank, which of any but a DTensor is all of it."""
    part: torch.Tensor = tensor.detach()
    return part.to_local() if hasattr(part, "to_local") else part


def bits(value: object) -> object:
    """Return a tensor as its bytes, whatever its dtype, and any other value as it is."""
    if isinstance(value, torch.Tensor):
        return local(value).reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
    return value
