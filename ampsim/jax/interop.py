"""The state of a loss scale to and from torch's ``state_dict``, flax's ``DynamicScale`` and jmp's.

The two functions of a pair are inverse, and after a conversion both sides continue equally to the last bit. Values that
the other side does not support raise. Each function documents differences at the ends of float32.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ampsim.core import dialects
from ampsim.core.extras import load
from ampsim.core.formats import FP32, binade
from ampsim.core.machine import Arithmetic, Rule, State, round_to_float32
from ampsim.jax.loss_scale import LossScale

CONSTANTS = ("growth_factor", "backoff_factor", "growth_interval")


def _refuse(name: str, value: object, expected: object, framework: str, fix: str) -> ValueError:
    return ValueError(
        f"{name}={value!r}: expected {expected}, as {framework} supports no other value; {fix}"
    )


def _require(rule: Rule, framework: str, **expected: object) -> None:
    for name, only in expected.items():
        if (value := getattr(rule, name)) != only:
            raise _refuse(
                name, value, repr(only), framework, f"convert a loss scale with {name}={only!r}"
            )


# ------------------------------------------------------------------------------------------------------ torch


def to_torch_state_dict(
    loss_scale: LossScale, *, elsewhere: Collection[str] = ()
) -> dict[str, object]:
    """Convert to a state dict of ``torch.amp.GradScaler`` and `ampsim.torch.GradScaler`.

    The dict has torch's five keys and, with a delay, ``pending``, which only ampsim reads. It has no bounds: pass those
    of the torch scaler in `elsewhere` (``min_scale``, ``max_scale``).

    Raises:
        ValueError: If the rule has features that torch lacks.
    """
    rule, state = loss_scale.rule, loss_scale.state
    expected: dict[str, object] = {"hysteresis": 1, "growth_test": "==", "arithmetic": Arithmetic()}
    bounds = {name: None for name in ("min_scale", "max_scale") if name not in elsewhere}
    _require(rule, "torch", **expected, **bounds)
    saved = {
        "scale": state.scale,
        **{name: getattr(rule, name) for name in CONSTANTS},
        "_growth_tracker": state.growth_tracker,
    }
    return saved | ({"pending": list(state.pending)} if rule.delay else {})


def from_torch_state_dict(saved: Mapping[str, Any], rule: Rule | None = None) -> LossScale:
    """Return the loss scale of a saved torch or `ampsim.torch` scaler.

    Args:
        saved: Result of ``state_dict()``.
        rule: Rule with the bounds and delay; default: torch's. The dict replaces its factors and interval.

    Returns:
        LossScale: The loss scale.

    Raises:
        ValueError: If the dict is empty, as of a disabled scaler, or lacks a key.
    """
    for key in ("scale", *CONSTANTS, "_growth_tracker"):
        if key not in saved:
            raise ValueError(
                f"no {key!r} in {sorted(saved)}: expected an enabled scaler's state_dict(); save that"
            )
    rule = (Rule() if rule is None else rule).replace(**{name: saved[name] for name in CONSTANTS})
    pending = tuple(map(float, saved.get("pending", ())))
    return LossScale.from_state(
        rule, State(float(saved["scale"]), int(saved["_growth_tracker"]), 0, pending)
    )


# ------------------------------------------------------------------------------------------------------- flax


def to_flax(loss_scale: LossScale) -> Any:
    """Return a ``flax.training.dynamic_scale.DynamicScale`` that continues `loss_scale`.

    flax compares the count before it adds one, so a growth_interval G is G - 1 in flax; the counts are equal. Both
    continue equally while the scale is within [2^-126, 2^127]: flax limits a growth to the largest float32 number
    instead of keeping the scale, and flushes subnormals.

    Raises:
        ValueError: If the rule has features that flax lacks, or a factor that is no float32 number, which flax would
            round.
    """
    module = load("flax.training.dynamic_scale")
    rule, state = loss_scale.rule, loss_scale.state
    _require(rule, "flax", hysteresis=1, delay=0, growth_test="==")
    if rule.max_scale not in (None, math.inf, FP32.max_finite):
        raise _refuse(
            "max_scale", rule.max_scale, "None", "flax", "convert a loss scale with max_scale=None"
        )
    _require_multiplication(rule, "flax")
    return module.DynamicScale(
        growth_factor=float(rule.growth_factor),
        backoff_factor=float(rule.backoff_factor),
        growth_interval=rule.growth_interval - 1,
        fin_steps=jnp.array(state.growth_tracker, jnp.int32),
        scale=jnp.array(np.float32(state.scale)),
        minimum_scale=None if rule.min_scale is None else round_to_float32(rule.min_scale),
    )


def _require_multiplication(rule: Rule, framework: str) -> None:
    """Raise unless a backoff is the float32 product of the scale and a float32 factor."""
    arithmetic = rule.arithmetic
    if arithmetic.dtype != "float32":
        raise _refuse("dtype", arithmetic.dtype, "'float32'", framework, "use a float32 scale")
    if arithmetic.backoff != "multiply" and binade(rule.growth_factor) is None:
        raise _refuse(
            "backoff",
            arithmetic.backoff,
            "'multiply'",
            framework,
            "use a growth_factor that is a power of two",
        )
    for name in ("growth_factor", "backoff_factor"):
        value = getattr(rule, name)
        if not arithmetic.round_factors and round_to_float32(value) != value:
            raise ValueError(
                f"{name}={value!r} is no float32 number: expected one, {framework} rounds it before it multiplies; "
                f"convert a loss scale with {name}={round_to_float32(value)!r}"
            )


def from_flax(dynamic_scale: Any) -> LossScale:
    """Return the loss scale that continues a flax ``DynamicScale`` under ``jit``, with its flushes and upper bound.

    Outside ``jit``, flax computes the first update in double if its scale is a Python float; the result is equal unless
    the scale or a factor has more digits than float32.
    """
    scale = _float32_scale("DynamicScale.scale", dynamic_scale.scale)
    return LossScale.from_state(
        rule_of_flax(dynamic_scale), State(scale, int(dynamic_scale.fin_steps))
    )


def rule_of_flax(dynamic_scale: Any) -> Rule:
    """Return the rule that a flax ``DynamicScale`` follows under ``jit``, flushes and upper bound included."""
    interval, low = int(dynamic_scale.growth_interval), dynamic_scale.minimum_scale
    rule = dialects.get(
        "flax.DynamicScale",
        growth_factor=float(dynamic_scale.growth_factor),
        backoff_factor=float(dynamic_scale.backoff_factor),
    )
    return rule.replace(growth_interval=interval + 1, min_scale=None if low is None else float(low))


def _float32_scale(name: str, scale: Any) -> float:
    if not isinstance(scale, (int, float)) and np.asarray(scale).dtype != np.float32:
        raise ValueError(f"{name} is {np.asarray(scale).dtype}: expected float32; convert it")
    return round_to_float32(float(scale))


# -------------------------------------------------------------------------------------------------------- jmp


def to_jmp(loss_scale: LossScale, *, jit: bool = True) -> Any:
    """Return a ``jmp.DynamicLossScale`` that continues `loss_scale`, for use within or outside ``jit``.

    Within ``jit``, jmp 0.0.4 replaces ``min_loss_scale`` by 1 and multiplies by a rounded reciprocal instead of
    dividing.

    Raises:
        ValueError: If the rule has features that jmp lacks. jmp's backoff is a division by the growth factor, and it
            always has a ``min_loss_scale``.
    """
    jmp = load("jmp")
    rule, state = loss_scale.rule, loss_scale.state
    _require(rule, "jmp", hysteresis=1, delay=0, growth_test="==", max_scale=None)
    _require_division(rule, jit=jit)
    if rule.min_scale is None or (jit and rule.min_scale != 1.0):
        raise _refuse(
            "min_scale", rule.min_scale, "1.0", "jmp", "convert a loss scale with min_scale=1.0"
        )
    if not 0 <= state.growth_tracker < rule.growth_interval:
        raise ValueError(
            f"growth_tracker={state.growth_tracker}: expected below growth_interval={rule.growth_interval}, jmp counts "
            "modulo that; restart the count from 0"
        )
    factor = rule.growth_factor
    return jmp.DynamicLossScale(
        loss_scale=jnp.array(np.float32(state.scale)),
        counter=jnp.array(state.growth_tracker, jnp.int32),
        period=rule.growth_interval,
        factor=int(factor) if factor == int(factor) else float(factor),
        min_loss_scale=jnp.array(np.float32(rule.min_scale)),
    )


def _require_division(rule: Rule, *, jit: bool) -> None:
    """Raise unless a backoff is jmp's: S / factor, or S * (1 / factor) within ``jit``."""
    arithmetic, factor = rule.arithmetic, rule.growth_factor
    if rule.backoff_factor != 1.0 / factor:
        raise _refuse("backoff_factor", rule.backoff_factor, f"1 / growth_factor = {1.0 / factor!r}", "jmp",
                      "change one of the two factors")  # fmt: skip
    wanted = "reciprocal" if jit else "divide"
    if binade(factor) is None and arithmetic.backoff != wanted:
        raise _refuse("backoff", arithmetic.backoff, repr(wanted), f"jmp {'within' if jit else 'outside of'} jit",
                      "use a growth_factor that is a power of two")  # fmt: skip
    if arithmetic.dtype != "float32" or not arithmetic.keeps_finite:
        raise ValueError(
            f"{arithmetic!r}: expected float32 with keeps_finite=True, as jmp's; pass such an arithmetic"
        )
    if not arithmetic.round_factors and round_to_float32(factor) != factor:
        raise _refuse("growth_factor", factor, "a float32 number", "jmp", "round it to float32")


def from_jmp(loss_scale: Any, *, jit: bool = True) -> LossScale:
    """Return the loss scale that continues a ``jmp.DynamicLossScale``, used within or outside ``jit``."""
    rule = dialects.get(
        "jmp.DynamicLossScale",
        init_scale=_float32_scale("loss_scale", loss_scale.loss_scale),
        factor=float(loss_scale.factor),
        growth_interval=int(loss_scale.period),
        min_loss_scale=float(np.asarray(loss_scale.min_loss_scale)),
        jit=jit,
    )
    return LossScale.from_state(rule, State(rule.init_scale, int(loss_scale.counter)))
