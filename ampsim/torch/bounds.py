"""What both scalers accept: scales within bounds, norms to clip at, and complete state dicts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ampsim.core import refusals
from ampsim.core.machine import round_to_float32
from ampsim.core.validation import as_float

SMALLEST_NORMAL = 2.0**-126  # in float32 the reciprocal of a scale below 2**-128 is inf
LARGEST = torch.finfo(torch.float32).max
CONSTANTS = ("growth_factor", "backoff_factor", "growth_interval")


def check_min_scale(min_scale: float) -> None:
    """Raise ValueError for a lower bound whose reciprocal may be inf."""
    if not min_scale >= SMALLEST_NORMAL:
        raise ValueError(
            f"min_scale={min_scale!r}: expected at least 2.0**-126, below which 1/scale may be inf; "
            "pass 2.0**-126"
        )


def check_scale(name: str, scale: Any, low: float, high: float) -> float:
    """Return a scale by value; raise unless it is a number within the bounds."""
    if isinstance(scale, Tensor):
        if scale.numel() != 1 or scale.requires_grad:
            raise refusals.NEW_SCALE.error()
        scale = scale.item()
    value = as_float(name, scale)
    if not low <= round_to_float32(value) <= high:
        raise ValueError(
            f"{name}={scale!r}: expected a number within [min_scale, max_scale] = [{low!r}, "
            f"{high!r}]; pass such a number, or construct the scaler with wider bounds"
        )
    return value


def check_max_norm(max_norm: Any) -> float:
    """Return a norm to clip at; a tensor of one element is read."""
    if isinstance(max_norm, Tensor) and max_norm.numel() == 1:
        max_norm = max_norm.item()
    norm = as_float("max_norm", max_norm)
    if not norm >= 0:
        raise ValueError(
            f"max_norm={max_norm!r}: expected a number of at least 0; for no clipping pass math.inf"
        )
    return norm


def check_keys(state_dict: Mapping[str, Any]) -> None:
    """Raise KeyError unless a state dict has torch's five keys."""
    names = ("scale", *CONSTANTS, "_growth_tracker")
    if missing := [name for name in names if name not in state_dict]:
        raise KeyError(
            f"the state dict has no {', '.join(missing)}, only {sorted(state_dict)}: expected "
            "all five keys of a GradScaler's state_dict(); load an unchanged state dict"
        )


def loss_scale_error(loss_scale: Any, scale: Any) -> RuntimeError:
    """Return the error for gradients of a loss from before an update that changed the scale."""
    return RuntimeError(
        f"gradients from before an update() would be divided by the scale {scale}: expected "
        f"{loss_scale}, by which their loss was multiplied; step every optimizer before update(), "
        "or scale a new loss"
    )
