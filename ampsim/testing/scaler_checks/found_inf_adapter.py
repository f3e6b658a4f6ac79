"""The adapter of a scaler that only takes an overflow flag per iteration."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ampsim.testing.scaler_checks.traits import FEATURES

if TYPE_CHECKING:
    import torch


class FoundInfAdapter:
    """torch's GradScaler methods for a scaler that only takes an overflow flag.

    Use this adapter for a scaler that is a state machine and does not handle gradients. The adapter
    divides the gradients, then checks them. It does not raise for misuse.

    Args:
        scale: Returns the loss scale.
        update: Called once per iteration with whether a gradient was inf or NaN.

    >>> from ampsim import Rule, init, update
    >>> import torch
    >>> class Mine:
    ...     def __init__(self, rule):
    ...         self.rule, self.state = rule, init(rule)
    ...     def update_scale(self, overflow):
    ...         self.state = update(self.rule, self.state, overflow)
    >>> def make(rule):
    ...     mine = Mine(rule)
    ...     return FoundInfAdapter(lambda: mine.state.scale, mine.update_scale)
    >>> make(Rule(init_scale=4.0)).scale(torch.tensor(2.0))
    tensor(8.)
    """

    unsupported = frozenset(FEATURES) - {
        "factors",
        "fused",
        "gives_up",
        "gradients",
        "growth",
        "optimizers",
        "step_value",
        "steps",
        "unscale_",
    }
    """The unsupported features of a scaler with this adapter."""

    def __init__(
        self, scale: Callable[[], float], update: Callable[[bool], object]
    ) -> None:
        self._scale = scale
        self._update = update
        self._used = 1.0  # what the last loss was multiplied by
        self._found: dict[
            torch.optim.Optimizer, bool
        ] = {}  # whether a gradient was inf or NaN
        self._divided: list[torch.Tensor] = []  # gradients of this iteration

    def get_scale(self) -> float:
        """Return the loss scale."""
        return float(self._scale())

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or each of a list or tuple of losses, by the scale."""
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(map(self.scale, outputs))
        import torch

        self._used = self.get_scale()
        return outputs * torch.tensor(self._used, dtype=torch.float32)

    def unscale_(self, optimizer: "torch.optim.Optimizer") -> None:
        """Divide the gradients by what the loss was multiplied by, and note whether all are finite."""
        for grad in _gradients(optimizer):
            # The gradient of a parameter that two optimizers share is divided once.
            if not any(grad is divided for divided in self._divided):
                grad /= self._used
                self._divided.append(grad)
        self._found[optimizer] = not _are_finite(optimizer)

    def step(
        self, optimizer: "torch.optim.Optimizer", *args: Any, **kwargs: Any
    ) -> Any:
        """Step unless a gradient of this optimizer was inf or NaN."""
        if optimizer not in self._found:
            self.unscale_(optimizer)
        # The loop may have written an inf since the division.
        self._found[optimizer] |= not _are_finite(optimizer)
        return None if self._found[optimizer] else optimizer.step(*args, **kwargs)

    def update(self) -> None:
        """Update the scaler with whether any optimizer of this iteration had an inf or NaN."""
        found = self._found
        self._found = {}
        self._divided = []
        self._update(any(found.values()))


def _gradients(optimizer: "torch.optim.Optimizer") -> "list[torch.Tensor]":
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [param.grad for param in params if param.grad is not None]


def _are_finite(optimizer: "torch.optim.Optimizer") -> bool:
    finite = [(abs(grad) < math.inf).all() for grad in _gradients(optimizer)]
    return all(map(bool, finite))
