"""torch's scaler as a loop is given it, which notes what becomes of it; and who else scales a loss."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from ampsim.testing.loop.run import Fault


class Scaler(torch.amp.GradScaler):
    """torch's scaler, which also notes whether it was used, which updates found an inf, and what changed it besides."""

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
        changed = [name for name, value in (self.left or {}).items() if now[name] != value]
        self.jumps += [
            f"{name} was {(self.left or {})[name]}, and {now[name]} in the next update"
            for name in changed
        ]
        super().update(new_scale)
        self.left = self.state_dict()


_LOCK = threading.Lock()
_WATCHING: dict[
    int, Callable[[object], None]
] = {}  # thread -> what is told of the scalers that scale a loss in it


@contextmanager
def watching(saw: Callable[[object], None]) -> Iterator[None]:
    """Tell of each scaler of torch's class that scales a loss in this thread; ranks are threads that do so at once."""
    theirs: Any = torch.amp.GradScaler
    with _LOCK:
        if not _WATCHING:
            theirs.scale = _telling(theirs.scale)
        _WATCHING[threading.get_ident()] = saw
    try:
        yield
    finally:
        with _LOCK:
            del _WATCHING[threading.get_ident()]
            if not _WATCHING:
                theirs.scale = theirs.scale.__wrapped__


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        saw = _WATCHING.get(threading.get_ident())
        if saw and scaler.is_enabled():
            saw(scaler)
        return original(scaler, outputs)

    return scale
