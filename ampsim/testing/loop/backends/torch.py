"""Runs of torch loops, which change objects in place."""

import copy
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampsim.testing.loop.backend import Fault, Run, Seeded
from ampsim.testing.loop.backends.torch_scaler import (
    Notes,
    assert_scale,
    make_scaler,
    size_of,
)
from ampsim.testing.loop.loop import Loop
from ampsim.testing.loop.state import Array, snapshot


class TorchRun(Run):
    """A run of a loop that was given torch's scaler, or one with its methods."""

    def __init__(self, wanted: type | None, scale: float, growth_interval: int) -> None:
        super().__init__(wanted, scale, growth_interval)
        self.notes = Notes(self.found)
        self._wanted = wanted or torch.amp.GradScaler
        self.scaler = make_scaler(self._wanted, scale, growth_interval, self.notes)

    def step(self, data: Any) -> None:
        # The threads of a pool wait for each other: on busy cores a loop took 20 times as long.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            super().step(data)
        finally:
            torch.set_num_threads(threads)

    @staticmethod
    def seed(number: int) -> None:
        Run.seed(number)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.manual_seed(number)
        else:  # which writes down, for each device that is not there yet, where it was called
            torch.default_generator.manual_seed(number)

    @property
    def used(self) -> bool:
        return self.notes.used

    @property
    def scale(self) -> float:
        return float(self.scaler.get_scale())

    def set_scale(self, scale: float) -> None:
        state = self.scaler.state_dict()
        if "scale" in state:
            self.scaler.load_state_dict({**state, "scale": scale})
        else:
            self.scaler.update(scale)
            self.found.pop()
        assert_scale(self.scaler, scale)

    def backed_off(self, scale: float) -> float:
        scaler = make_scaler(self._wanted, scale, 1, Notes())
        param = nn.Parameter(torch.ones(1))
        param.grad = torch.full_like(param, math.inf)
        scaler.scale(param)
        scaler.step(torch.optim.SGD([param]))
        scaler.update()
        return float(scaler.get_scale())

    def scaler_state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self.scaler.state_dict()
        return state

    def unpack(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _array(value)
        # the given one's state is looked at apart, another's is its own
        if value is self.scaler or isinstance(value, torch.amp.GradScaler):
            return {}
        return value.state_dict() if hasattr(value, "state_dict") else value

    def parameters(self) -> Mapping[str, Array]:
        return {name: _array(param) for name, param in trained(self.loop).items()}

    @contextmanager
    def seeding(self, fault: Fault = Fault()) -> Iterator[Seeded]:  # noqa: B008
        seeded = Seeded()

        names = {id(param): name for name, param in trained(self.loop).items()}
        handles = [register_optimizer_step_pre_hook(partial(_measure, seeded, names))]
        handles += [
            param.register_post_accumulate_grad_hook(
                partial(self._arrived, seeded, fault, name)
            )  # type: ignore[no-untyped-call]
            for name, param in trained(self.loop).items()
            if param.is_leaf
        ]
        self.notes.fault = fault if fault.place == "loss" else None
        try:
            yield seeded
        finally:
            self.notes.fault = None
            for handle in handles:
                handle.remove()

    def _arrived(self, seeded: Seeded, fault: Fault, name: str, param: Tensor) -> None:
        """Note a gradient that has arrived, and plant the fault in it if it is the one."""
        if param.grad is None:
            return
        if fault.value == 1:
            early = seeded.early or snapshot(self.loop.state, self.unpack, {})
            seeded.early = early
        number = seeded.passes[name] = seeded.passes.get(name, 0) + 1
        if (
            fault.value != 1
            and not fault.place
            and fault.name in ("", name)
            and fault.only in (None, number - 1)
        ):
            _spoil(param.grad, fault)

    def owners(self) -> Mapping[str, str]:
        names = {id(param): name for name, param in trained(self.loop).items()}
        found: dict[str, str] = {}
        for key, value in self.loop.state.items():
            ours = {
                id(param)
                for group in getattr(value, "param_groups", ())
                for param in group["params"]
            }
            found |= dict.fromkeys((names[each] for each in ours if each in names), key)
            stepped = (
                getattr(value, "optimizer", None)
                if hasattr(value, "last_epoch")
                else None
            )
            of = next(
                (name for name, each in self.loop.state.items() if each is stepped),
                None,
            )
            if ours or of:
                found |= dict.fromkeys(
                    (name for name in self.states[-1] if name.startswith(f"{key}.")),
                    of or key,
                )
        return found

    def save(self) -> Any:
        return (
            super().save()
            if self.loop.save
            else (self.scaler.state_dict(), super().save())
        )

    def load(self, checkpoint: Any) -> None:
        if not self.loop.load:
            scaler, checkpoint = checkpoint
            self.scaler.load_state_dict(scaler)
        super().load(checkpoint)

    def held(self, names: Collection[str]) -> Any:
        state = {
            key: self.loop.state[key]
            for key in names
            if self.loads(self.loop.state[key])
        }
        return copy.deepcopy(
            {
                key: value.state_dict() if hasattr(value, "state_dict") else value
                for key, value in state.items()
            }
        )

    def hold(self, held: Any) -> None:
        for key, saved in held.items():
            value = self.loop.state[key]
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(saved)
            else:
                with torch.no_grad():
                    value[...] = saved

    def loads(self, value: Any) -> bool:
        return hasattr(value, "load_state_dict") or isinstance(
            value, (Tensor, np.ndarray)
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
                found.setdefault(
                    id(param), (f"{key}.param_groups.{index}.params.{place}", param)
                )
    return {name: param for name, param in found.values() if param.requires_grad}


def _array(value: Tensor) -> Array:
    dense = (
        value.detach().to_dense() if value.layout != torch.strided else value.detach()
    )
    return (
        (dense.float() if dense.dtype == torch.bfloat16 else dense).cpu().numpy().copy()
    )


def _spoil(grad: Tensor, fault: Fault) -> None:
    """Write the value of a fault into a gradient: the last element, or all of them."""
    values = grad._values() if grad.is_sparse else grad
    if values.numel():
        values[tuple(-1 for _ in values.shape) if fault.name else ...] = fault.value


def _measure(
    seeded: Seeded, names: Mapping[int, str], optimizer: Optimizer, *_: object
) -> None:
    """Note the sizes of the gradients that an optimizer steps with."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if name := names.get(id(param)):
                size = size_of(param.grad)
                seeded.largest[name] = max(seeded.largest.get(name, -1.0), size)
