"""One update of the state machine on arrays: `core.machine.advance` without branches.

All constants of a rule are numbers or flags in `Constants`, so all rules share one compiled step,
and a batch of rules is a vmap.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampsim.core.machine import Arithmetic, Rule
from ampsim.jax import exact_product
from ampsim.jax.exact_product import LAYOUTS, Factor, WordLayout

LARGEST_COUNT = 2**31 - 1  # trackers are int32
Limbs = Literal["fewest", "product", "division"]


class Constants(NamedTuple):
    """A rule as arrays; with a trailing axis, many rules."""

    growth: Factor
    backoff: Factor
    low: Array  # (), word: bits of min_scale, 0 for none
    high: Array  # (), word: bits of max_scale, those of inf for none
    growth_interval: Array  # (), int32
    hysteresis: Array  # (), int32
    reset_clean: Array  # (), bool; these three: which events reset the hysteresis
    reset_growth: Array
    reset_backoff: Array
    at_least: Array  # (), bool: the growth test is >=, not ==
    keeps_finite: Array  # (), bool
    flush_subnormals: Array  # (), bool


def check(rule: object) -> None:
    """Raise for a rule that this package cannot reproduce to the last bit."""
    if not isinstance(rule, Rule) or type(rule.arithmetic) is not Arithmetic:
        raise TypeError(
            f"{rule!r}: expected a Rule with torch's arithmetic; "
            "pass Rule(init_scale=...); for a policy use PolicyScale"
        )
    if rule.quirks:
        names = ", ".join(type(quirk).__name__ for quirk in rule.quirks)
        raise ValueError(
            f"quirks={names}: expected a rule without quirks, which are Python code; "
            "pass rule.replace(quirks=()), or use ampsim.update outside JAX"
        )
    has_64_bits = jnp.result_type(float) == jnp.float64
    if rule.arithmetic.dtype == "float64" and not has_64_bits:
        raise ValueError(
            "dtype='float64' without jax_enable_x64: expected a float32 scale; "
            'call jax.config.update("jax_enable_x64", True) first'
        )
    for name in ("growth_interval", "hysteresis"):
        if getattr(rule, name) > LARGEST_COUNT:
            raise ValueError(
                f"{name}={getattr(rule, name)}: expected at most 2**31 - 1, as counts are int32; lower it"
            )


def divides(rule: Rule) -> bool:
    """Return whether its backoff is a true division, which takes a longer factor."""
    return rule.arithmetic.backoff == "divide"


def constants(rule: Rule, *, limbs: Limbs = "fewest") -> Constants:
    """Return a checked rule as numpy arrays.

    Args:
        rule: The rule.
        limbs: How many limbs its factors have: as many as a "product" or a "division" needs, for
            rules that are stacked or compared, or the "fewest" for this rule, which are none if
            its factors are 1/2, 1, or 2.
    """
    check(rule)
    layout = LAYOUTS[rule.arithmetic.dtype]
    growth, backoff = _factors(rule, layout, _limb_count(rule, layout, limbs))
    arrays: dict[str, Any] = {  # numpy's, until they are traced
        "growth": growth,
        "backoff": backoff,
        "low": _bound(rule, layout, rule.min_scale, 0.0),
        "high": _bound(rule, layout, rule.max_scale, math.inf),
        "growth_interval": np.int32(rule.growth_interval),
        "hysteresis": np.int32(rule.hysteresis),
        "reset_clean": np.bool_("clean" in rule.hysteresis_reset),
        "reset_growth": np.bool_("growth" in rule.hysteresis_reset),
        "reset_backoff": np.bool_("backoff" in rule.hysteresis_reset),
        "at_least": np.bool_(rule.growth_test == ">="),
        "keeps_finite": np.bool_(rule.arithmetic.keeps_finite),
        "flush_subnormals": np.bool_(rule.arithmetic.flush_subnormals),
    }
    return Constants(**arrays)


def _limb_count(rule: Rule, layout: WordLayout, limbs: Limbs) -> int:
    if limbs == "fewest":
        if _doubles_and_halves(rule):
            return 0
        limbs = "division" if divides(rule) else "product"
    return layout.divisor_limbs if limbs == "division" else layout.limbs


def _doubles_and_halves(rule: Rule) -> bool:
    used = {rule.growth_factor}
    if rule.arithmetic.backoff == "multiply":
        used.add(rule.backoff_factor)
    return used <= {0.5, 1.0, 2.0}


def _factors(rule: Rule, layout: WordLayout, limbs: int) -> tuple[Factor, Factor]:
    arithmetic = rule.arithmetic
    hold = arithmetic.round if arithmetic.round_factors else float
    growth = hold(rule.growth_factor)
    backoff = hold(rule.backoff_factor)
    if arithmetic.backoff == "reciprocal":
        backoff = arithmetic.round(1.0 / growth)
    for name, value in (("growth_factor", growth), ("backoff_factor", backoff)):
        if not (0 < value < math.inf):
            raise ValueError(
                f"{name}={getattr(rule, name)!r} is {value} in {arithmetic.dtype}: expected a positive finite factor; "
                "pass a factor within the format"
            )
    up = exact_product.factor(layout, growth, "multiply", limbs)
    if divides(rule):
        return up, exact_product.factor(layout, growth, "divide", limbs)
    return up, exact_product.factor(layout, backoff, "multiply", limbs)


def _bound(rule: Rule, layout: WordLayout, bound: float | None, default: float) -> Any:
    # Without its sign, as -0.0 is a bound of 0.
    held = default if bound is None else abs(rule.arithmetic.round(bound))
    return np.array(held, layout.dtype).view(layout.word)[()]


def stacked(rules: Sequence[Rule]) -> Constants:
    """Return rules of one dtype as arrays with one more axis, the last: a limb of all rules lies in
    one piece.
    """
    limbs: Limbs = "division" if any(map(divides, rules)) else "product"
    parts = [constants(rule, limbs=limbs) for rule in rules]
    return jax.tree.map(lambda *leaves: np.stack(leaves, axis=-1), *parts)  # type: ignore[no-any-return]


@functools.partial(jax.jit, static_argnames="layout", inline=True)
def advance(
    layout: WordLayout,
    c: Constants,
    old: Array,
    trackers: tuple[Array, Array],
    found_inf: Array,
) -> tuple[Array, tuple[Array, Array]]:
    """Take one step of the state machine without delay, from the bits of the newest scale."""
    clean, overflows = trackers
    patient = found_inf & (overflows + 1 < c.hysteresis)
    backs_off = found_inf & ~patient
    growth_tracker = jnp.where(found_inf, 0, clean + 1)
    reached = jnp.where(
        c.at_least,
        growth_tracker >= c.growth_interval,
        growth_tracker == c.growth_interval,
    )
    grows = ~found_inf & reached

    bits = exact_product.product_of_either(layout, old, found_inf, c.backoff, c.growth)
    bits = jnp.where(
        c.flush_subnormals & (bits < layout.word(layout.smallest_normal)),
        layout.word(0),
        bits,
    )
    grown = jnp.minimum(bits, c.high)
    grown = jnp.where(
        c.keeps_finite & (grown >= layout.word(layout.infinity)), old, grown
    )
    new = jnp.where(backs_off, jnp.maximum(bits, c.low), jnp.where(grows, grown, old))
    # A NaN that was loaded stays.
    new = jnp.where(old > layout.word(layout.infinity), old, new)

    reset = (
        (~found_inf & c.reset_clean)
        | (grows & c.reset_growth)
        | (backs_off & c.reset_backoff)
    )
    overflows = jnp.where(reset, 0, jnp.where(patient, overflows + 1, overflows))
    return new, (jnp.where(grows, 0, growth_tracker), overflows)


class Queue(NamedTuple):
    """The current loss scale and the pending ones, as bits."""

    scale: Array  # (), word
    pending: Array  # (delay,), word: oldest first; unused places hold the current scale
    waiting: Array  # (), int32: how many wait


def publish(queue: Queue, computed: Array, *, at_once: bool) -> Queue:
    """Append a new scale to the queue, and make the oldest one the current loss scale.

    `at_once` makes the new one current and drops the others.
    """
    delay = queue.pending.shape[0]
    if delay == 0:
        return queue._replace(scale=computed)
    if at_once:
        return Queue(
            computed,
            jnp.full_like(queue.pending, computed),
            jnp.zeros_like(queue.waiting),
        )
    pending = jnp.concatenate([queue.pending[1:], computed[None]])
    return Queue(queue.pending[0], pending, jnp.minimum(queue.waiting + 1, delay))


@functools.partial(jax.jit, static_argnames=("layout", "at_once"), inline=True)
def step(
    layout: WordLayout,
    c: Constants,
    queue: Queue,
    trackers: tuple[Array, Array],
    found_inf: Array,
    *,
    at_once: bool = False,
) -> tuple[Queue, tuple[Array, Array]]:
    """Do one update with its delay; return (queue, (growth_tracker, overflow_tracker)) after it."""
    newest = queue.pending[-1] if queue.pending.shape[0] else queue.scale
    computed, trackers = advance(layout, c, newest, trackers, found_inf)
    return publish(queue, computed, at_once=at_once), trackers
