"""The scaler that a torch loop is given: torch's, or one of a class with torch's methods."""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ampsim.core.machine import Rule
from ampsim.testing.construction import maker_of
from ampsim.testing.loop.loop import LoopError, blame_user_code

if TYPE_CHECKING:
    from ampsim.testing.loop.backend import Fault

METHODS = (
    "scale",
    "unscale_",
    "step",
    "update",
    "get_scale",
    "state_dict",
    "load_state_dict",
)


@dataclass
class Notes:
    """What becomes of a scaler, kept outside of it, where no name of its class can be taken.

    Attributes:
        found: whether a gradient was not finite in the steps before an update, one per update.
        scaler: the scaler that the notes are of.
        used: whether a method was called.
        fault: a fault to seed in the scaled loss.
        has_nonfinite: whether a gradient has not been finite since the last update.
    """

    found: list[bool] = field(default_factory=list)
    scaler: Any = None
    used: bool = False
    fault: "Fault | None" = None
    has_nonfinite: bool = False

    def look(self, optimizer: Optimizer) -> None:
        """Note whether a gradient of an optimizer is not finite."""
        params = (each for group in optimizer.param_groups for each in group["params"])
        if not all(math.isfinite(size_of(param.grad)) for param in params):
            self.has_nonfinite = True

    def end(self, *, is_set: bool) -> None:
        """Note an update, which by itself finds no inf if the loop sets the scale."""
        self.used = True
        self.found.append(self.has_nonfinite and not is_set)
        self.has_nonfinite = False


def make_scaler(wanted: type, scale: float, growth_interval: int, notes: Notes) -> Any:
    """Return a scaler of a class that is like `wanted` and takes notes.

    Raises:
        LoopError: The class lacks one of torch's methods, or cannot be constructed at this scale.
    """
    name = wanted.__name__
    if missing := [each for each in METHODS if not hasattr(wanted, each)]:
        raise LoopError(
            f"make takes a {name} without {', '.join(missing)}: expected the methods of "
            "torch.amp.GradScaler, or a loss scale class of ampsim.jax, flax, or jmp"
        )
    rule = Rule(init_scale=scale, growth_interval=growth_interval)
    with blame_user_code(f"{name} at init_scale={scale:g}"):
        notes.scaler = maker_of(_noting(wanted, notes))(rule)
    assert_scale(notes.scaler, scale)
    return notes.scaler


def assert_scale(scaler: Any, scale: float) -> None:
    """Raise LoopError if a scaler that was set to a scale has another one."""
    seen = float(scaler.get_scale())
    if seen != scale:
        raise LoopError(
            f"{type(scaler).__name__}: get_scale() is {seen:g}, expected {scale:g}, as set by init_scale, "
            "state_dict(), or update(new_scale); the checks need powers of two from 1 to 65536, and an enabled scaler"
        )


def _noting(wanted: Any, given: Notes) -> type:
    def notes_of(scaler: Any) -> Notes:
        # A loop may make another scaler of the same class, or copy this one.
        return given if scaler is given.scaler else Notes()

    def scale(self: Any, outputs: Any) -> Any:
        notes = notes_of(self)
        scaled = wanted.scale(self, outputs)
        notes.used = True
        if notes.fault is None:
            return scaled
        return tree_map(partial(torch.mul, other=notes.fault.value), scaled)

    def unscale_(self: Any, optimizer: Optimizer) -> Any:
        notes_of(self).look(optimizer)
        return wanted.unscale_(self, optimizer)

    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        notes_of(self).look(optimizer)
        return wanted.step(self, optimizer, *args, **kwargs)

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_set = any(each is not None for each in (*args, *kwargs.values()))
        notes_of(self).end(is_set=is_set)
        return wanted.update(self, *args, **kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807
        # A pickle cannot name a class that is made here.
        _, _, *state = wanted.__reduce_ex__(self, protocol)
        return object.__new__, (wanted,), *state

    made = (scale, unscale_, step, update, __reduce_ex__)
    return type(wanted.__name__, (wanted,), {each.__name__: each for each in made})


def size_of(grad: Tensor | None) -> float:
    """Return the largest absolute value of a gradient; -1 for none."""
    if grad is None:
        return -1.0
    values = grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
    return float(values.abs().max()) if values.numel() else 0.0
