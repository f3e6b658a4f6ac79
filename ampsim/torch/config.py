"""What a GradScaler is constructed with: checks with torch's types and texts where torch has them."""

import warnings
from typing import Any, Literal, get_args

import torch

from ampsim.core.checks import whole
from ampsim.core.machine import Rule

Policy = Literal["clamp", "raise", "warn", "torch"]

SMALLEST_NORMAL = 2.0**-126  # the reciprocal of a scale below 2^-128 is inf in float32


def usable(device: str, enabled: bool) -> bool:
    """`enabled`, unless CUDA was asked for and is not there; then torch warns and disables, and so do we."""
    if enabled and device == "cuda" and not torch.cuda.is_available():
        warnings.warn("torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.", stacklevel=4)
        return False
    return enabled


def check_policy(policy: Any) -> Policy:
    """One of the policies; None is "clamp"."""
    if policy is None:
        return "clamp"
    if policy not in get_args(Policy):
        raise ValueError(f"policy={policy!r}: expected one of {', '.join(map(repr, get_args(Policy)))}")
    return policy  # type: ignore[no-any-return]


def check_depth(depth: Any) -> int:
    """A whole number >= 0."""
    return whole("depth", depth, 0, "to run synchronously as torch does pass depth=0")


def make_rule(
    init_scale: float,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    min_scale: float | None,
    max_scale: float | None,
    *,
    strict: bool,
) -> Rule:
    """The rule behind a scaler. `strict` checks no more than torch does."""
    if growth_factor <= 1.0:
        raise AssertionError("The growth factor must be > 1.0.")
    if backoff_factor >= 1.0:
        raise AssertionError("The backoff factor must be < 1.0.")
    constants = {
        "init_scale": init_scale,
        "growth_factor": growth_factor,
        "backoff_factor": backoff_factor,
        "growth_interval": growth_interval,
        "min_scale": min_scale,
        "max_scale": max_scale,
    }
    if strict:
        return Rule.unchecked(**constants)
    rule = Rule(**constants | {"min_scale": SMALLEST_NORMAL if min_scale is None else min_scale})  # type: ignore[arg-type]
    low, high = rule.min_scale or 0.0, rule.max_scale
    if low < SMALLEST_NORMAL:
        raise ValueError(
            f"min_scale={min_scale!r}: expected at least 2.0**-126, below which 1/scale may be inf; "
            'pass policy="torch" for torch\'s behaviour'
        )
    if not low <= rule.init_scale <= (high if high is not None else rule.init_scale):
        raise ValueError(
            f"init_scale={init_scale!r}: expected within [min_scale, max_scale] = [{low!r}, {high!r}]; widen them"
        )
    return rule


def changed(rule: Rule, *, strict: bool, **change: Any) -> Rule:
    """The rule with constants changed; `strict` does not check them."""
    if not strict:
        return rule.replace(**change)
    return Rule.unchecked(**{**{name: getattr(rule, name) for name in Rule.__dataclass_fields__}, **change})


def new_scale_by_value(new_scale: Any, device: str, rule: Rule, *, strict: bool) -> float | torch.Tensor:
    """What ``update(new_scale)`` was given, taken by value now; with torch's refusals.

    A tensor on the CPU becomes a float; on another device it stays there, copied.
    """
    if isinstance(new_scale, torch.Tensor):
        reason = (
            "new_scale should be a float or a 1-element torch.cuda.FloatTensor or "
            "torch.FloatTensor with requires_grad=False."
        )
        if new_scale.device.type != device or new_scale.numel() != 1 or new_scale.requires_grad:
            raise AssertionError(reason)
        if new_scale.device.type != "cpu":
            return new_scale.detach().clone()
        new_scale = float(new_scale)
    if strict:
        if not isinstance(new_scale, float):  # torch asks a number that is no float for its device
            raise AttributeError(f"{type(new_scale).__name__!r} object has no attribute 'device'")
        return new_scale
    low = rule.min_scale or 0.0
    high = rule.max_scale if rule.max_scale is not None else 2.0**127
    if isinstance(new_scale, bool) or not isinstance(new_scale, (int, float)) or not low <= new_scale <= high:
        raise ValueError(f"new_scale={new_scale!r}: expected a number within the bounds [{low!r}, {high!r}]")
    return float(new_scale)


def held(scale: float, rule: Rule, *, strict: bool) -> float:
    """A scale from a state dict, as float32 holds it."""
    if not strict:
        new_scale_by_value(scale, "cpu", rule, strict=False)
    return rule.arithmetic.round(float(scale))


def check_floor(policy: Policy, rule: Rule, version: Any, found_inf: list[torch.Tensor]) -> None:
    """What `policy` says about an overflow at ``min_scale``: nothing, a warning, or FloatingPointError."""
    if policy not in ("raise", "warn"):
        return
    scale = version.read().scale
    if scale > (rule.min_scale or 0.0) or not any(flag.item() for flag in found_inf):
        return
    text = (
        f"overflow at scale {scale!r}, which is min_scale: the scale cannot go lower, so the loss or the forward "
        "pass itself overflows; lower the learning rate, clip gradients, or pass a lower min_scale"
    )
    if policy == "raise":
        raise FloatingPointError(text)
    warnings.warn(text, RuntimeWarning, stacklevel=5)
