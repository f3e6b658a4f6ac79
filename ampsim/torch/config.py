"""Validation of a GradScaler's arguments, with torch's exception types and texts where torch has them."""

import dataclasses
import numbers
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch.cuda.amp.common import amp_definitely_not_available

from ampsim.core.formats import FP32
from ampsim.core.machine import Rule, round_to_float32
from ampsim.core.policies import Policy
from ampsim.core.torch_model import refusals
from ampsim.core.validation import as_int, check_choice
from ampsim.torch.state.device import DeviceVersion, StaticVersion
from ampsim.torch.state.host import HostVersion
from ampsim.torch.state.policy import PolicyVersion
from ampsim.torch.state.version import AnyVersion

AtMinScale = Literal["clamp", "warn", "raise"]

SMALLEST_NORMAL = 2.0**-126  # the reciprocal of a scale below 2^-128 is inf in float32


def usable(device: str, enabled: bool) -> bool:
    """Return `enabled`, or warn and return False if CUDA is requested and missing, as torch does."""
    if enabled and device == "cuda" and amp_definitely_not_available():  # type: ignore[no-untyped-call]
        warnings.warn(
            "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
            stacklevel=3,
        )
        return False
    return enabled


def check_device(device: object) -> None:
    """Raise ValueError for an unknown device, e.g. the scale that torch.cuda.amp takes first."""
    try:
        torch.device(str(device))
    except RuntimeError:
        raise ValueError(
            f'device={device!r}: expected a torch device; pass "cuda" or "cpu", and the scale as init_scale='
        ) from None


@dataclass(frozen=True)
class Options:
    """Validated, immutable settings of a scaler, without its device, rule, and threads."""

    depth: int
    on_min_scale: AtMinScale
    exact_torch: bool
    allow_fp16: bool
    capturable: bool

    def __post_init__(self) -> None:
        depth = as_int("depth", self.depth, 0, "to run synchronously, as torch does, pass depth=0")
        object.__setattr__(self, "depth", depth)  # an int, whatever was passed
        check_choice("on_min_scale", self.on_min_scale, get_args(AtMinScale))
        if self.exact_torch and self.on_min_scale != "clamp":
            raise ValueError(
                f"on_min_scale={self.on_min_scale!r} with exact_torch=True: torch has no such option; pass one of them"
            )

    def check_capturable(self, launch: object) -> None:
        """Raise ValueError for settings that a CUDA graph does not support.

        A graph replays one iteration on one stream and cannot wait for the host.
        """
        at_min = None if self.on_min_scale == "clamp" else self.on_min_scale
        for name, value, fix in (
            ("depth", self.depth, "depth=0"),
            ("launch", launch, "launch=None: one stream must order the iteration"),
            ("on_min_scale", at_min, '"clamp", which does not read the scale'),
        ):
            if self.capturable and value:
                raise ValueError(f"capturable=True with {name}={value!r}: expected {fix}")


def common_to_ranks(options: Options, rule: Rule | Policy) -> dict[str, object]:
    """Return settings that must be equal on all ranks; raise for settings that a group does not support."""
    if options.capturable:
        raise ValueError(
            "capturable=True with a group: replays of a collective are untested; pass only one of the two"
        )
    if isinstance(rule, Policy) and "saturated" in rule.needs:
        raise ValueError(
            f"policy={rule!r} with a group needs the share of saturated elements: expected a policy that needs "
            "found_inf or amax, as one all-reduce computes a maximum and no sum; pass another policy"
        )
    return {
        name: getattr(options, name) for name in ("depth", "exact_torch", "on_min_scale")
    } | named(rule)


def named(rule: Rule | Policy) -> dict[str, object]:
    """Return the numbers of a rule or a policy by name."""
    return {
        "policy": type(rule).__name__,
        **{f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)},
    }


Numbers = tuple[float, float, float, int, float | None, float | None]
DEFAULTS: Numbers = (2.0**16, 2.0, 0.5, 2000, None, None)


def check_policy(policy: object, numbers: Numbers, options: Options) -> Policy:
    """Return a policy; raise if it is none, has another delay, or is passed together with constants."""
    if (*numbers, options.capturable) != (*DEFAULTS, False):
        raise ValueError(
            f"policy= with {(*numbers, options.capturable)}: expected the defaults of init_scale, growth_factor, "
            "backoff_factor, growth_interval, min_scale, max_scale, and capturable; pass these numbers to the policy"
        )
    if not isinstance(policy, Policy):
        raise TypeError(
            f"policy={policy!r}: expected a policy of ampsim.core.policies; for a Rule pass its constants"
        )
    if options.exact_torch:
        raise ValueError(
            f"policy={policy!r} with exact_torch=True: torch has no policies; pass only one of the two"
        )
    if policy.delay != options.depth:
        raise ValueError(
            f"delay={policy.delay} with depth={options.depth}: expected them to be equal; "
            f"pass dataclasses.replace(policy, delay={options.depth})"
        )
    return policy


def make_rule(
    init_scale: float,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    min_scale: float | None,
    max_scale: float | None,
    *,
    exact_torch: bool,
) -> Rule:
    """Return the rule of a scaler; with `exact_torch`, validate only what torch validates."""
    if growth_factor <= 1.0:
        raise refusals.GROWTH_FACTOR.error()
    if backoff_factor >= 1.0:
        raise refusals.BACKOFF_FACTOR.error()
    bounds = {"min_scale": _as_held(min_scale), "max_scale": _as_held(max_scale)}
    constants = {
        "init_scale": init_scale,
        "growth_factor": growth_factor,
        "backoff_factor": backoff_factor,
        "growth_interval": growth_interval,
    }
    if exact_torch:
        return Rule.unchecked(**constants, **bounds)
    bounds |= {"min_scale": SMALLEST_NORMAL} if min_scale is None else {}
    rule = Rule(**constants, **bounds, growth_test=">=")  # type: ignore[arg-type] # see Differences: a lowered interval
    _check_reach(rule, min_scale)
    return rule


def _check_reach(rule: Rule, min_scale: float | None) -> None:
    """Raise ValueError for bounds at which 1/scale is inf, and for an initial scale outside of them."""
    low, high = bounds_of(rule)
    if low < SMALLEST_NORMAL:
        raise ValueError(
            f"min_scale={min_scale!r}: expected at least 2.0**-126, below which 1/scale may be inf; "
            "pass exact_torch=True for torch's behavior"
        )
    if not low <= round_to_float32(rule.init_scale) <= high:
        raise ValueError(
            f"init_scale={rule.init_scale!r}: expected within [min_scale, max_scale] = [{low!r}, {high!r}]; widen them"
        )


def _as_held(bound: Any) -> Any:
    """Round a bound to float32, so that a scale at the bound compares equal; return other objects."""
    return (
        round_to_float32(bound)
        if isinstance(bound, (int, float)) and not isinstance(bound, bool)
        else bound
    )


def bounds_of(rule: Rule) -> tuple[float, float]:
    """Return the smallest and the largest scale of a rule."""
    largest = FP32.max_finite
    return rule.min_scale or 0.0, largest if rule.max_scale is None else min(
        rule.max_scale, largest
    )


def version_class(rule: Rule | Policy, device: torch.device, options: Options) -> type[AnyVersion]:
    """Return the class of the state: on the host for a policy, on the host or device for a rule."""
    if isinstance(rule, Policy):
        return PolicyVersion
    if options.capturable:
        return StaticVersion
    return HostVersion if device.type == "cpu" and not options.exact_torch else DeviceVersion


def changed(rule: Rule, options: Options, **change: Any) -> Rule:
    """Return the rule with changed constants; `exact_torch` does not validate them."""
    if not options.exact_torch:
        return dataclasses.replace(rule, **change)
    return Rule.unchecked(
        **{**{name: getattr(rule, name) for name in Rule.__dataclass_fields__}, **change}
    )


def new_scale_by_value(
    new_scale: Any, device: str, rule: Rule, options: Options
) -> float | torch.Tensor:
    """Copy the argument of ``update(new_scale)``; raise torch's errors for invalid ones.

    The result is a float; for a tensor on another device than the CPU, it is a copy on that device.
    """
    if options.exact_torch:
        return _as_torch_takes_it(new_scale, device)
    if isinstance(new_scale, torch.Tensor):
        _check_tensor(new_scale, device)
        if device != "cpu":
            return new_scale.detach().clone()
        new_scale = new_scale.item()
    return within_bounds("new_scale", new_scale, rule)


def _as_torch_takes_it(new_scale: Any, device: str) -> float | torch.Tensor:
    """Fill or copy it into a float32 scalar, which raises for large numbers and shape (1,)."""
    if isinstance(new_scale, float):
        return torch.zeros(()).fill_(new_scale).item()
    _check_tensor(new_scale, device)
    return torch.zeros((), dtype=torch.float32, device=new_scale.device).copy_(new_scale)


def _check_tensor(new_scale: Any, device: str) -> None:
    if new_scale.device.type != device or new_scale.numel() != 1 or new_scale.requires_grad:
        raise refusals.NEW_SCALE.error()


def within_bounds(name: str, scale: object, rule: Rule) -> float:
    """Return a scale as a float; raise unless it is a number within the rule's bounds."""
    low, high = bounds_of(rule)
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise TypeError(
            f"{name}={scale!r} is a {type(scale).__name__}: expected a number; pass a float such as 1024.0"
        )
    if not low <= round_to_float32(float(scale)) <= high:
        raise ValueError(
            f"{name}={scale!r}: expected a number within [min_scale, max_scale] = [{low!r}, {high!r}]; "
            "pass such a number, or construct the scaler with wider bounds"
        )
    return float(scale)


def check_max_norm(max_norm: Any) -> float | torch.Tensor:
    """Return `max_norm` as a float; a tensor on a device is not validated, which would wait for it."""
    one = isinstance(max_norm, torch.Tensor) and max_norm.numel() == 1
    if one and max_norm.device.type != "cpu":
        return max_norm.detach().reshape(())  # type: ignore[no-any-return]
    if not (one or isinstance(max_norm, numbers.Real)):
        raise TypeError(f"max_norm={max_norm!r}: expected a number; pass a float such as 1.0")
    if not (norm := float(max_norm)) >= 0:
        raise ValueError(
            f"max_norm={max_norm!r}: expected a number of at least 0; for no clipping pass math.inf"
        )
    return norm


def check_min_scale(
    on_min_scale: AtMinScale, rule: Rule, version: AnyVersion, found_inf: list[torch.Tensor]
) -> None:
    """Handle an overflow at ``min_scale``: do nothing, warn, or raise FloatingPointError."""
    if on_min_scale == "clamp":
        return
    scale = version.read().scale
    if scale > bounds_of(rule)[0] or not any(flag.item() for flag in found_inf):
        return
    text = (
        f"overflow at scale {scale!r}, which is min_scale: the scale cannot decrease further; the loss or the "
        "forward pass itself may overflow; lower the learning rate, clip gradients, or pass a lower min_scale"
    )
    if on_min_scale == "raise":
        raise FloatingPointError(text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)
