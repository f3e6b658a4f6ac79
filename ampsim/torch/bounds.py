"""What both scalers accept: constants, scales within bounds, norms, and complete state dicts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ampsim.core import refusals
from ampsim.core.machine import SETTABLE, Rule, round_to_float32
from ampsim.core.validation import as_float, as_int

SMALLEST_NORMAL = 2.0**-126  # in float32 the reciprocal of a scale below 2**-128 is inf
LARGEST = torch.finfo(torch.float32).max


def make_rule(
    init_scale: float,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    *,
    min_scale: float,
    max_scale: float | None,
) -> Rule:
    """Return the constants and bounds of a scaler, rounded to float32.

    Raises:
        AssertionError: With torch's text, if growth_factor <= 1 or backoff_factor >= 1.
        TypeError: If a value has an invalid type.
        ValueError: If a value is out of range.
    """
    if growth_factor <= 1.0:
        raise refusals.GROWTH_FACTOR.error()
    if backoff_factor >= 1.0:
        raise refusals.BACKOFF_FACTOR.error()
    low = round_to_float32(as_float("min_scale", min_scale))
    high = None
    if max_scale is not None:
        high = round_to_float32(as_float("max_scale", max_scale))
    if not low >= SMALLEST_NORMAL:
        raise ValueError(
            f"min_scale={min_scale!r}: expected at least 2.0**-126, below which 1/scale may be inf; "
            "pass 2.0**-126"
        )
    rule = Rule(
        init_scale,
        growth_factor,
        backoff_factor,
        growth_interval,
        min_scale=low,
        max_scale=high,
        growth_test=">=",  # an interval set below the tracker grows at the next finite step
    )
    check_scale("init_scale", init_scale, rule)
    return rule


def bounds_of(rule: Rule) -> tuple[float, float]:
    """Return the lowest and the highest scale of a rule."""
    high = LARGEST if rule.max_scale is None else min(rule.max_scale, LARGEST)
    return rule.min_scale or 0.0, high


def check_scale(name: str, scale: Any, rule: Rule) -> float:
    """Return a scale, rounded to float32; raise unless it is a number within a rule's bounds."""
    if isinstance(scale, Tensor):
        if scale.numel() != 1 or scale.requires_grad:
            raise refusals.NEW_SCALE.error()
        scale = scale.item()
    value = round_to_float32(as_float(name, scale))
    low, high = bounds_of(rule)
    if not low <= value <= high:
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


def check_state_dict(
    state_dict: Mapping[str, Any], rule: Rule
) -> tuple[dict[str, Any], Rule]:
    """Return a state dict by value, and `rule` with its constants.

    Raises:
        KeyError: If one of torch's five keys is missing.
        TypeError: If a value has an invalid type.
        ValueError: If a value is out of range.
    """
    names = ("scale", *SETTABLE, "_growth_tracker")
    if missing := [name for name in names if name not in state_dict]:
        raise KeyError(
            f"the state dict has no {', '.join(missing)}, only {sorted(state_dict)}: expected "
            "all five keys of a GradScaler's state_dict(); load an unchanged state dict"
        )
    saved = dict(state_dict)
    for name in names:
        if isinstance(saved[name], Tensor):
            saved[name] = saved[name].item()
    rule = rule.replace(**{name: saved[name] for name in SETTABLE})
    saved["scale"] = check_scale("scale", saved["scale"], rule)
    tracker = saved["_growth_tracker"]
    if isinstance(tracker, float) and tracker.is_integer():
        tracker = int(tracker)
    fix = "load an unchanged dict"
    saved["_growth_tracker"] = as_int("_growth_tracker", tracker, 0, fix)
    return saved, rule


def loss_scale_error(loss_scale: Any, scale: Any) -> RuntimeError:
    """Return the error for gradients of a loss from before an update that changed the scale."""
    return RuntimeError(
        f"gradients from before an update() would be divided by the scale {scale}: expected "
        f"{loss_scale}, by which their loss was multiplied; step every optimizer before update(), "
        "or scale a new loss"
    )
