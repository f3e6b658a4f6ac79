"""Many rules over one history, or each over its own: a vmap of a scan."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from ampsim.core.machine import Rule, init
from ampsim.jax import exact_product, machine
from ampsim.jax.exact_product import FORMATS, Format
from ampsim.jax.finite import Tree


class Summary(NamedTuple):
    """The end of each rule's run; JAX arrays of shape (rules,)."""

    scale: Array  # in force at the end, in the rules' dtype
    growth_tracker: Array  # int32
    overflow_tracker: Array  # int32
    skipped: Array  # int32: overflows


def sweep(
    rules: Sequence[Rule],
    found_inf: npt.ArrayLike | None = None,
    *,
    ceilings: npt.ArrayLike | None = None,
    summary: bool = False,
) -> Array | Summary:
    """Return the scales of many rules after each update; row i equals ``ampsim.replay(rules[i], ...)`` to the last bit.

    Compiled once for a number of rules and steps: the constants of the rules are data. On one CPU core some
    10^7 rule-steps a second.

    Args:
        rules: of one ``delay`` and one dtype, without quirks.
        found_inf: shape (steps,) for all rules, or (rules, steps); by its truth.
        ceilings: instead of `found_inf`: the largest scale that does not overflow, of either shape. A step
            overflows if the scale in force is above it; NaN never does.
        summary: return a `Summary`, which needs no memory for the steps.

    Returns:
        Array of shape (rules, steps), float32 (float64 if the rules' arithmetic is), or a `Summary`.

    Raises:
        ValueError, TypeError: as `LossScale.create`, or arguments that do not fit each other.
    """
    rules = list(rules)
    form, delay = _shared(rules)
    if (found_inf is None) == (ceilings is None):
        raise ValueError("expected found_inf or ceilings, and not both; pass one of them")
    # A found_inf of NaN is an overflow.
    inputs = keys(form, np.asarray(ceilings, np.float64)) if found_inf is None else np.asarray(found_inf) != 0
    if inputs.ndim not in (1, 2) or (inputs.ndim == 2 and len(inputs) != len(rules)):
        raise ValueError(f"shape {inputs.shape}: expected (steps,) or ({len(rules)}, steps); pass one row per rule")
    start = np.array([init(rule).scale for rule in rules], form.dtype)
    done: Array | Summary = _run(form, delay, summary, machine.stacked(rules), start, inputs)
    return done


def _shared(rules: Sequence[Rule]) -> tuple[Format, int]:
    for rule in rules:
        machine.check(rule)
    shapes = {(rule.arithmetic.dtype, rule.delay) for rule in rules}
    if len(shapes) != 1:
        raise ValueError(
            f"rules of (dtype, delay) {sorted(shapes)}: expected one or more rules that share them; sweep each apart"
        )
    dtype, delay = shapes.pop()
    return FORMATS[dtype], delay


def keys(form: Format, ceilings: npt.NDArray[np.float64]) -> npt.NDArray[np.signedinteger]:
    """Return ceilings as integers in the order of a positive scale's bits: a scale is above c if its bits are above.

    Rounded down, since no scale lies between c and the next smaller number of its format.
    """
    signed = np.dtype(f"i{form.width // 8}")
    with np.errstate(over="ignore", under="ignore"):
        near = ceilings.astype(form.dtype)
        below = np.where(near > ceilings, np.nextafter(near, form.dtype(-np.inf)), near).astype(form.dtype)
    keys = np.where(below < 0, -1, np.abs(below).view(signed))
    return np.where(np.isnan(ceilings), np.iinfo(signed).max, keys).astype(signed)


@functools.partial(jax.jit, static_argnames=("form", "delay", "summary"))
def _run(form: Format, delay: int, summary: bool, constants: machine.Constants, start: Array, inputs: Array) -> Tree:
    one = functools.partial(_run_one, form, delay, summary)
    return jax.vmap(one, in_axes=(-1, 0, 0 if inputs.ndim == 2 else None))(constants, start, inputs)


def _run_one(form: Format, delay: int, summary: bool, c: machine.Constants, start: Array, inputs: Array) -> Tree:
    zero, bits = jnp.zeros((), np.int32), exact_product.to_bits(form, start)
    queue = machine.Queue(bits, jnp.full((delay,), bits), zero)

    def body(carry: Tree, given: Array) -> Tree:
        queue, trackers, skipped = carry
        signed = lax.bitcast_convert_type(queue.scale, f"int{form.width}")
        found = given if given.dtype == jnp.bool_ else signed > given
        queue, trackers = machine.step(form, c, queue, trackers, found)
        return (queue, trackers, skipped + found), None if summary else exact_product.from_bits(form, queue.scale)

    (queue, trackers, skipped), scales = lax.scan(body, (queue, (zero, zero), zero), inputs)
    return Summary(exact_product.from_bits(form, queue.scale), *trackers, skipped) if summary else scales
