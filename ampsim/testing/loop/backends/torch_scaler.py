"""torch's scaler as a loop is given it, which notes what becomes of it."""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from ampsim.testing.loop.run import Fault


class Scaler(torch.amp.GradScaler):
    """torch's scaler, which also notes whether it was used, and which updates found an inf."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.found: list[bool] = []
        self.used = False
        self.fault: Fault | None = None  # in the scaled loss

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
        super().update(new_scale)
