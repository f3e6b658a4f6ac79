"""Fused optimizers, whose step divides by ``grad_scale`` and skips on ``found_inf``."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


def is_fused(optimizer: Any) -> bool:
    """Return whether an optimizer's step divides and skips by itself."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def divides_by_grad_scale(optimizer: Any) -> bool:
    """Return whether a step divides by ``grad_scale``.

    A step with a parameter ``grad_scaler`` gets the scaler itself from torch, and no attributes.
    """
    return is_fused(optimizer) and not _takes_scaler(_function(optimizer.step))


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)  # a bound method would keep its optimizer


@functools.lru_cache(maxsize=64)
def _takes_scaler(step: Callable[..., object]) -> bool:
    return "grad_scaler" in inspect.signature(step).parameters


class Attributes(NamedTuple):
    """What a fused optimizer's step reads; None if an attribute is not set."""

    grad_scale: Tensor | None
    found_inf: Tensor | None


def attributes_of(optimizer: Any) -> Attributes:
    """Return an optimizer's ``grad_scale`` and ``found_inf``."""
    attributes = vars(optimizer)
    return Attributes(attributes.get("grad_scale"), attributes.get("found_inf"))


def restore_attributes(optimizer: Any, saved: Attributes) -> None:
    """Set an optimizer's ``grad_scale`` and ``found_inf`` to what `attributes_of` returned."""
    for name, value in saved._asdict().items():
        vars(optimizer).pop(name, None)
        if value is not None:
            setattr(optimizer, name, value)


def count_states(optimizer: Any) -> int:
    """Return for how many parameters an optimizer has state; 0 if it has no dict of states."""
    states = getattr(optimizer, "state", None)
    return len(states) if isinstance(states, dict) else 0


def drop_states(optimizer: Any, kept: int) -> None:
    """Drop all but the first `kept` states, which a skipped step has just allocated.

    torch's fused SGD allocates a momentum and its kernel leaves it as it is. The next step would use
    the content of that memory as the momentum.
    """
    for param in [*optimizer.state][kept:]:
        del optimizer.state[param]
