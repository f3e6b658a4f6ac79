"""Replay of many rules over one trace, or over one trace each: a vmap of a scan.

The scan goes over all steps; the rules run in parallel.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from ampsim.core.machine import Rule, init
from ampsim.jax import exact_product, machine
from ampsim.jax.exact_product import LAYOUTS, WordLayout


class Summary(NamedTuple):
    """Summary of each rule's run; JAX arrays of shape ``(rules,)``.

    Attributes:
        scale: Last loss scale, in the rules' dtype.
        growth_tracker: Number of finite steps since the last overflow or growth, int32.
        overflow_tracker: Number of overflows without a backoff, int32.
        skipped: Number of overflows, int32.
    """

    scale: Array
    growth_tracker: Array
    overflow_tracker: Array
    skipped: Array


def sweep(
    rules: Sequence[Rule], found_inf: npt.ArrayLike, *, summary: bool = False
) -> Array | Summary:
    """Replay many rules over overflow sequences.

    Row i equals ``ampsim.replay(rules[i], ...)`` to the last bit. Compiled once per number of rules
    and steps, as the constants of the rules are data. One CPU core computes about 10^7 rule-steps
    per second. For overflow thresholds, `ampsim.replay_thresholds` is faster.

    Args:
        rules: Rules with one ``delay`` and one dtype, without quirks.
        found_inf: One flag per step, of shape ``(steps,)`` for all rules, or ``(rules, steps)``.
        summary: Whether to return a `Summary`, which needs no memory for the steps.

    Returns:
        Array of scales after each update, of shape ``(rules, steps)`` and dtype float32, or float64
        if the rules' arithmetic is; or a `Summary`.

    Raises:
        TypeError: If an object is no `Rule`, or the flags are text.
        ValueError: If a rule is not supported (see `LossScale.create`), or shapes do not match.
    """
    rules = list(rules)
    flags = np.asarray(found_inf)
    layout, delay = _shared_by_rules(rules)
    if flags.dtype.kind in "US":
        raise TypeError(
            "text: expected flags or numbers, one per step; "
            "pass [digit == '1' for digit in sequence]"
        )
    if flags.ndim not in (1, 2) or (flags.ndim == 2 and len(flags) != len(rules)):
        raise ValueError(
            f"shape {flags.shape}: expected (steps,) or ({len(rules)}, steps); "
            "pass one row per rule"
        )
    start = np.array([init(rule).scale for rule in rules], layout.dtype)
    constants = machine.stacked(rules)
    found = flags.astype(bool)
    return _run(layout, delay, summary, constants, start, found)  # type: ignore[no-any-return]


@functools.partial(jax.jit, static_argnames=("layout", "delay", "summary"))
def _run(
    layout: WordLayout,
    delay: int,
    summary: bool,
    constants: machine.Constants,
    start: Array,
    flags: Array,
) -> Array | Summary:
    """Scan the steps of every rule; the last axis of `constants` is the rules."""

    def one(
        constants: machine.Constants, start: Array, flags: Array
    ) -> Array | Summary:
        zero = jnp.zeros((), np.int32)
        bits = exact_product.to_bits(layout, start)
        queue = machine.Queue(bits, jnp.full((delay,), bits), zero)

        def body(carry: Any, found: Array) -> tuple[Any, Array | None]:
            queue, trackers, skipped = carry
            queue, trackers = machine.step(layout, constants, queue, trackers, found)
            scale = None if summary else exact_product.from_bits(layout, queue.scale)
            return (queue, trackers, skipped + found), scale

        (queue, trackers, skipped), scales = lax.scan(
            body, (queue, (zero, zero), zero), flags
        )
        if scales is not None:
            return scales
        return Summary(exact_product.from_bits(layout, queue.scale), *trackers, skipped)

    axis = 0 if flags.ndim == 2 else None
    return jax.vmap(one, in_axes=(-1, 0, axis))(constants, start, flags)


def _shared_by_rules(rules: Sequence[Rule]) -> tuple[WordLayout, int]:
    for rule in rules:
        machine.check(rule)
    shapes = {(rule.arithmetic.dtype, rule.delay) for rule in rules}
    if len(shapes) != 1:
        raise ValueError(
            f"rules of (dtype, delay) {sorted(shapes)}: expected rules that share them; "
            "call sweep for each group"
        )
    dtype, delay = shapes.pop()
    return LAYOUTS[dtype], delay
