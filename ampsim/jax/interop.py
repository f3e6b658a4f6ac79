"""The state of a loss scale to and from torch's ``state_dict``, flax's ``DynamicScale`` and jmp's.

The two functions of a pair are inverse, and after a conversion both sides continue equally to the
last bit. Values that the other side does not support raise. Each function documents differences at
the ends of float32.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampsim.core import dialects
from ampsim.core.extras import load
from ampsim.core.formats import FP32
from ampsim.core.machine import SETTABLE, Rule, State, round_to_float32
from ampsim.jax import machine
from ampsim.jax.loss_scale import LossScale

# Constant of `machine.Constants` -> field of the rule that it comes from.
FIELDS = {
    "hysteresis": "hysteresis",
    "at_least": "growth_test",
    "low": "min_scale",
    "high": "max_scale",
    "growth": "growth_factor",
    "backoff": "backoff_factor",
    "growth_interval": "growth_interval",
    "keeps_finite": "arithmetic",
    "flush_subnormals": "arithmetic",
}


def _require_same(rule: Rule, theirs: Rule, framework: str, *free: str) -> None:
    """Raise unless both rules give the same scales, up to the constants in `free`."""
    ours = machine.constants(rule, limbs="division")
    other = machine.constants(theirs, limbs="division")
    differing = ["delay"] if rule.delay != theirs.delay else []
    for name, field in FIELDS.items():
        if name in free:
            continue
        if not _equal(getattr(ours, name), getattr(other, name)):
            differing.append(field)
    if differing:
        raise ValueError(
            f"{', '.join(dict.fromkeys(differing))} of {rule}: expected those of {theirs}, which "
            f"{framework} computes; convert a loss scale of such a rule"
        )


def _equal(a: Any, b: Any) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


# ------------------------------------------------------------------------------------------------------
# torch


def to_torch_state_dict(
    loss_scale: LossScale, *, elsewhere: Collection[str] = ()
) -> dict[str, object]:
    """Convert to a state dict of ``torch.amp.GradScaler`` and `ampsim.torch.GradScaler`.

    The dict has torch's five keys and, with a delay, ``pending``, which only ampsim reads. It has
    no bounds: pass those of the torch scaler in `elsewhere` (``min_scale``, ``max_scale``).

    Raises:
        ValueError: If the rule has features that torch lacks.
    """
    rule = loss_scale.rule
    state = loss_scale.state
    constants = {name: getattr(rule, name) for name in SETTABLE}
    kept = {name: getattr(rule, name) for name in ("delay", *elsewhere)}
    _require_same(rule, Rule(**constants, **kept), "torch")
    saved = {"scale": state.scale, **constants, "_growth_tracker": state.growth_tracker}
    return saved | ({"pending": list(state.pending)} if rule.delay else {})


def from_torch_state_dict(
    saved: Mapping[str, Any], rule: Rule | None = None
) -> LossScale:
    """Return the loss scale of a saved torch or `ampsim.torch` scaler.

    Args:
        saved: Result of ``state_dict()``.
        rule: Rule with the bounds and delay; default: torch's. The dict replaces its factors and
            interval.

    Returns:
        LossScale: The loss scale.

    Raises:
        ValueError: If the dict is empty, as of a disabled scaler, or lacks a key.
    """
    for key in ("scale", *SETTABLE, "_growth_tracker"):
        if key not in saved:
            raise ValueError(
                f"no {key!r} in {sorted(saved)}: expected an enabled scaler's state_dict(); save that"
            )
    rule = (Rule() if rule is None else rule).replace(
        **{name: saved[name] for name in SETTABLE}
    )
    pending = tuple(map(float, saved.get("pending", ())))
    return LossScale.from_state(
        rule, State(float(saved["scale"]), int(saved["_growth_tracker"]), 0, pending)
    )


# -------------------------------------------------------------------------------------------------------
# flax


def to_flax(loss_scale: LossScale) -> Any:
    """Return a ``flax.training.dynamic_scale.DynamicScale`` that continues `loss_scale`.

    flax compares the count before it adds one, so a growth_interval G is G - 1 in flax; the counts
    are equal. Both continue equally while the scale is within [2^-126, 2^127]: flax limits a growth
    to the largest float32 number instead of keeping the scale, and flushes subnormals.

    Raises:
        ValueError: If the rule has features that flax lacks, or a factor that is no float32 number,
            which flax would round.
    """
    module = load("flax.training.dynamic_scale")
    rule = loss_scale.rule
    state = loss_scale.state
    made = module.DynamicScale(
        growth_factor=float(rule.growth_factor),
        backoff_factor=float(rule.backoff_factor),
        growth_interval=rule.growth_interval - 1,
        fin_steps=jnp.array(state.growth_tracker, jnp.int32),
        scale=jnp.array(np.float32(state.scale)),
        minimum_scale=None
        if rule.min_scale is None
        else round_to_float32(rule.min_scale),
    )
    free = ["flush_subnormals", "keeps_finite"]
    if rule.max_scale in (None, math.inf, FP32.max_finite):
        free.append("high")
    _require_same(rule, rule_of_flax(made), "flax", *free)
    return made


def from_flax(dynamic_scale: Any) -> LossScale:
    """Return the loss scale that continues a flax ``DynamicScale`` under ``jit``, with its flushes
    and upper bound.

    Outside ``jit``, flax computes the first update in double if its scale is a Python float; the
    result is equal unless the scale or a factor has more digits than float32.
    """
    scale = _float32_scale("DynamicScale.scale", dynamic_scale.scale)
    return LossScale.from_state(
        rule_of_flax(dynamic_scale), State(scale, int(dynamic_scale.fin_steps))
    )


def rule_of_flax(dynamic_scale: Any) -> Rule:
    """Return the rule that a flax ``DynamicScale`` follows under ``jit``, flushes and upper bound
    included.
    """
    interval = int(dynamic_scale.growth_interval)
    low = dynamic_scale.minimum_scale
    rule = dialects.get(
        "flax.DynamicScale",
        growth_factor=float(dynamic_scale.growth_factor),
        backoff_factor=float(dynamic_scale.backoff_factor),
    )
    return rule.replace(
        growth_interval=interval + 1, min_scale=None if low is None else float(low)
    )


def _float32_scale(name: str, scale: Any) -> float:
    if not isinstance(scale, (int, float)) and np.asarray(scale).dtype != np.float32:
        raise ValueError(
            f"{name} is {np.asarray(scale).dtype}: expected float32; convert it"
        )
    return round_to_float32(float(scale))


# --------------------------------------------------------------------------------------------------------
# jmp


def to_jmp(loss_scale: LossScale, *, jit: bool = True) -> Any:
    """Return a ``jmp.DynamicLossScale`` that continues `loss_scale`, for use within or outside
    ``jit``.

    Within ``jit``, jmp 0.0.4 replaces ``min_loss_scale`` by 1 and multiplies by a rounded
    reciprocal instead of dividing.

    Raises:
        ValueError: If the rule has features that jmp lacks. jmp's backoff is a division by the
            growth factor.
    """
    jmp = load("jmp")
    rule = loss_scale.rule
    state = loss_scale.state
    factor = rule.growth_factor
    low = rule.min_scale or 0.0
    made = jmp.DynamicLossScale(
        loss_scale=jnp.array(np.float32(state.scale)),
        counter=jnp.array(state.growth_tracker, jnp.int32),
        period=rule.growth_interval,
        factor=int(factor) if factor == int(factor) else float(factor),
        min_loss_scale=jnp.array(np.float32(low)),
    )
    _require_same(rule, _rule_of_jmp(made, jit=jit), "jmp", "flush_subnormals")
    if not 0 <= state.growth_tracker < rule.growth_interval:
        raise ValueError(
            f"growth_tracker={state.growth_tracker}: expected below growth_interval="
            f"{rule.growth_interval}, jmp counts modulo that; restart the count from 0"
        )
    return made


def from_jmp(loss_scale: Any, *, jit: bool = True) -> LossScale:
    """Return the loss scale that continues a ``jmp.DynamicLossScale``, used within or outside
    ``jit``.
    """
    rule = _rule_of_jmp(loss_scale, jit=jit)
    return LossScale.from_state(rule, State(rule.init_scale, int(loss_scale.counter)))


def _rule_of_jmp(loss_scale: Any, *, jit: bool) -> Rule:
    return dialects.get(
        "jmp.DynamicLossScale",
        init_scale=_float32_scale("loss_scale", loss_scale.loss_scale),
        factor=float(loss_scale.factor),
        growth_interval=int(loss_scale.period),
        min_loss_scale=float(np.asarray(loss_scale.min_loss_scale)),
        jit=jit,
    )
