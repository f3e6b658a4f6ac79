"""Composer's scaler, which steps by way of a closure."""

from collections.abc import Callable
from typing import Any

from ampsim.peers.frameworks.here import pass_over
from ampsim.peers.frameworks.torch_like import TorchLike


class Composer(TorchLike):
    """ClosureGradScaler with an optimizer that asks its closure whether to step, as Composer's SAM does."""

    name = "composer"
    requirement = "mosaicml==0.32.1"
    environment = "torch-more"
    target = "composer.trainer._scaler.ClosureGradScaler"
    source = "https://github.com/mosaicml/composer/blob/v0.32.1/composer/trainer/_scaler.py#L15"
    dialect = "composer.ClosureGradScaler"
    patched = "its __init__, which imports torchvision, is passed over"

    def make(self, **constants: Any) -> Any:
        pass_over("composer", "composer.utils", "composer.trainer")
        from composer.trainer._scaler import ClosureGradScaler

        return ClosureGradScaler("cpu", **constants)

    def iterate(self) -> None:
        given = self.optimized.param.grad

        def closure() -> float:
            self.optimized.param.grad = given  # backward
            return 0.0

        self.scaler.step(_Asking(self.optimized.optimizer), closure=closure)
        self.scaler.update()


class _Asking:
    """An optimizer that asks its closure whether to step."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def step(self, closure: Callable[[], float | None]) -> None:
        if closure() is not None:
            self.optimizer.step()
