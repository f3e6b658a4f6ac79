"""torch's scaler as a loop is given it, which notes what becomes of it; and who else scales a loss."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from ampsim.testing.loop.run import Fault


class Scaler(torch.amp.GradScaler):
    """torch's scaler, which also notes whether it was used, which updates found an inf, and what
    changed it besides.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.found: list[bool] = []
        self.used = False
        self.fault: Fault | None = None  # in the scaled loss
        self.left: dict[str, Any] | None = None  # by the last update
        self.jumps: list[str] = []  # between two updates

    def scale(self, outputs: Any) -> Any:
        self.used = True
        scaled = super().scale(outputs)
        return (
            scaled
            if self.fault is None
            else tree_map(partial(torch.mul, other=self.fault.value), scaled)
        )

    def update(self, new_scale: float | Tensor | None = None) -> None:
        self.used = True
        found = [
            inf
            for each in self._per_optimizer_states.values()
            for inf in each["found_inf_per_device"].values()
        ]
        self.found.append(any(bool(inf) for inf in found))
        now = self.state_dict()
        changed = [
            name for name, value in (self.left or {}).items() if now[name] != value
        ]
        self.jumps += [
            f"{name} was {(self.left or {})[name]}, and {now[name]} in the next update"
            for name in changed
        ]
        super().update(new_scale)
        self.left = self.state_dict()


@contextmanager
def watching(saw: Callable[[object], None]) -> Iterator[None]:
    """Call a function with each enabled scaler of torch's class that scales a loss meanwhile."""
    original = torch.amp.GradScaler.scale

    def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        if scaler.is_enabled():
            saw(scaler)
        return original(scaler, outputs)

    with mock.patch.object(torch.amp.GradScaler, "scale", scale):
        yield
