"""Runs of torch loops, which change objects in place."""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampsim.testing.loop.backends.torch_exact import Inexact
from ampsim.testing.loop.loop import Loop
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.state import Array


class Scaler(torch.amp.GradScaler):
    """torch's scaler, which also notes whether it was used and which updates found an inf."""

    def __init__(self, scale: float, growth_interval: int, **group: Any) -> None:
        super().__init__("cpu", init_scale=scale, growth_interval=growth_interval, **group)
        self.found: list[bool] = []
        self.used = False

    def scale(self, outputs: Any) -> Any:
        self.used = True
        return super().scale(outputs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        self.used = True
        found = [inf for each in self._per_optimizer_states.values() for inf in each["found_inf_per_device"].values()]
        self.found.append(any(bool(inf) for inf in found))
        super().update(new_scale)


class TorchRun(Run):
    """A run of a loop that was given torch's scaler."""

    scaler: Scaler

    def __init__(self, wanted: type | None, scale: float, growth_interval: int, group: Any = None) -> None:
        super().__init__(wanted, scale, growth_interval)
        if _asks_ranks(wanted):
            self.scaler = type("Scaler", (Scaler, wanted), {})(scale, growth_interval, group=group)
        else:
            self.scaler = Scaler(scale, growth_interval)
        self.found = self.scaler.found

    @staticmethod
    def seed(number: int) -> None:
        Run.seed(number)
        torch.manual_seed(number)

    @staticmethod
    def together(size: int, live: Callable[[Any], object]) -> str:
        if not torch.distributed.is_available():
            return Run.together(size, live)
        from ampsim.testing.loop.backends import torch_ranks

        return torch_ranks.play(size, live)

    @property
    def used(self) -> bool:
        return self.scaler.used

    @property
    def scale(self) -> float:
        return self.scaler.get_scale()

    def set_scale(self, scale: float) -> None:
        self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale})

    def scaler_state(self) -> Mapping[str, Any]:
        return self.scaler.state_dict()

    def unpack(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _array(value)
        return value.state_dict() if hasattr(value, "state_dict") else value

    def parameters(self) -> Mapping[str, Array]:
        return {name: _array(param) for name, param in trained(self.loop).items()}

    @contextmanager
    def planting(self, only: int | None = None) -> Iterator[Mapping[str, int]]:
        passes = Counter[str]()

        def plant(name: str, grad: Tensor) -> None:
            if only in (None, passes[name]):
                (grad.mul_ if grad.is_sparse else grad.fill_)(math.inf)
            passes[name] += 1

        handles = [
            param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda p, name=name: plant(name, p.grad)
            )
            for name, param in trained(self.loop).items()
            if param.is_leaf
        ]
        try:
            yield passes
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def gradients(self) -> Iterator[Mapping[str, float]]:
        names = {id(param): name for name, param in trained(self.loop).items()}
        largest: dict[str, float] = {}

        def look(optimizer: Optimizer, *_: object) -> None:
            for param in (p for group in optimizer.param_groups for p in group["params"] if id(p) in names):
                name = names[id(param)]
                largest[name] = max(largest.get(name, -1.0), _size(param.grad))

        hook = register_optimizer_step_pre_hook(look)  # on all, as one in state may only wrap the one that steps
        try:
            yield largest
        finally:
            hook.remove()

    def save(self) -> Any:
        if self.loop.save:
            return self.loop.save()
        return {"scaler": self.scaler.state_dict()} | {
            f"state.{key}": value.state_dict() if hasattr(value, "state_dict") else value
            for key, value in self.loop.state.items()
            if self.loads(value)
        }

    def load(self, checkpoint: Any) -> None:
        if self.loop.load:
            self.loop.load(checkpoint)
            return
        self.scaler.load_state_dict(checkpoint["scaler"])
        for key, value in self.loop.state.items():
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(checkpoint[f"state.{key}"])
            elif self.loads(value):
                with torch.no_grad():
                    value[...] = checkpoint[f"state.{key}"]

    def loads(self, value: Any) -> bool:
        return hasattr(value, "load_state_dict") or isinstance(value, (Tensor, np.ndarray))

    @staticmethod
    def inexact(replay: Callable[[], object], *, tiny: bool) -> str:
        with Inexact() as watch:
            replay()
        return watch.half or (watch.tiny if tiny else "")


def _asks_ranks(wanted: type | None) -> TypeGuard[type]:
    """Return whether a loop takes a kind of torch's scaler that is told its process group."""
    return (
        wanted is not None
        and issubclass(wanted, torch.amp.GradScaler)
        and "group" in inspect.signature(wanted).parameters
    )


def trained(loop: Loop) -> dict[str, Tensor]:
    """Return the parameters that the loop trains, by name: of modules and optimizers in its state."""
    found: dict[int, tuple[str, Tensor]] = {}
    for key, value in loop.state.items():
        if isinstance(value, nn.Module):
            for name, param in value.named_parameters():
                found.setdefault(id(param), (f"{key}.{name}", param))
    for key, value in loop.state.items():
        for index, group in enumerate(getattr(value, "param_groups", ())):
            for place, param in enumerate(group["params"]):
                found.setdefault(id(param), (f"{key}.param_groups.{index}.params.{place}", param))
    return {name: param for name, param in found.values() if param.requires_grad}


def _array(value: Tensor) -> Array:
    dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
    return (dense.float() if dense.dtype == torch.bfloat16 else dense).cpu().numpy().copy()


def _size(grad: Tensor | None) -> float:
    """Return the largest absolute value of a gradient; -1 for none."""
    if grad is None:
        return -1.0
    values = grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
    return float(values.abs().max()) if values.numel() else 0.0
