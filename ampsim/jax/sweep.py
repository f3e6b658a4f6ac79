"""Replay of many rules or policies over one trace, or over one trace each: a vmap of a scan.

`sweep` replays rules, `sweep_policies` replays policies of one type. Both scan over all steps; the rules run in
parallel.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from ampsim.core.formats import FP16
from ampsim.core.machine import Rule, init
from ampsim.core.policies import Observation, Policy
from ampsim.jax import exact_product, machine
from ampsim.jax.exact_product import FLOAT32, FORMATS, Format
from ampsim.jax.finite import Tree


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


class PolicySummary(NamedTuple):
    """Summary of each policy's run; JAX arrays of shape ``(policies,)``.

    Attributes:
        scale: Last loss scale, float32.
        skipped: Number of overflows, int32.
        mean_log2_scale: Mean of log2 of the loss scale after each update, float32.
    """

    scale: Array
    skipped: Array
    mean_log2_scale: Array


def sweep(
    rules: Sequence[Rule],
    found_inf: npt.ArrayLike | None = None,
    *,
    thresholds: npt.ArrayLike | None = None,
    summary: bool = False,
) -> Array | Summary:
    """Replay many rules; row i equals ``ampsim.replay(rules[i], ...)`` to the last bit.

    Compiled once per number of rules and steps, as the constants of the rules are data. One CPU core computes about
    10^7 rule-steps per second.

    Args:
        rules: Rules with one ``delay`` and one dtype, without quirks.
        found_inf: One flag per step, of shape ``(steps,)`` for all rules, or ``(rules, steps)``.
        thresholds: Overflow thresholds instead of `found_inf`, of either shape. A step overflows if its loss scale is
            above the threshold; NaN never overflows.
        summary: Whether to return a `Summary`, which needs no memory for the steps.

    Returns:
        Array of scales after each update, of shape ``(rules, steps)`` and dtype float32, or float64 if the rules'
        arithmetic is; or a `Summary`.

    Raises:
        TypeError: If an object is no `Rule`, or the flags are text.
        ValueError: If a rule is not supported (see `LossScale.create`), or shapes do not match.
    """
    rules = list(rules)
    form, delay = _shared_by_rules(rules)
    if (found_inf is None) == (thresholds is None):
        raise ValueError("expected either found_inf or thresholds; pass one of them")
    if np.asarray(found_inf if thresholds is None else thresholds).dtype.kind in "US":
        raise TypeError(
            "text: expected flags or numbers, one per step; pass [digit == '1' for digit in history]"
        )
    # A found_inf of NaN is an overflow.
    inputs = (
        _keys(form, np.asarray(thresholds, np.float64))
        if found_inf is None
        else np.asarray(found_inf) != 0
    )
    if inputs.ndim not in (1, 2) or (inputs.ndim == 2 and len(inputs) != len(rules)):
        raise ValueError(
            f"shape {inputs.shape}: expected (steps,) or ({len(rules)}, steps); pass one row per rule"
        )
    start = np.array([init(rule).scale for rule in rules], form.dtype)
    done: Array | Summary = _run(
        _rule, (form, delay), summary, (-1, 0), (machine.stacked(rules), start), inputs
    )
    return done


def sweep_policies(
    policies: Sequence[Policy],
    thresholds: npt.ArrayLike,
    *,
    top: float = FP16.max_finite,
    summary: bool = False,
) -> Array | PolicySummary:
    """Replay many policies; row i equals ``replay_thresholds(policies[i], thresholds)``.

    Equal to the last bit, except for `LogMax`, see `ampsim.jax.policy`. Numbers in which the policies differ are data,
    so a grid is compiled once.

    Args:
        policies: Policies of one type and one ``delay``, which differ only in numbers.
        thresholds: Overflow thresholds, at least 0, of shape ``(steps,)`` for all policies, or ``(policies, steps)``.
        top: Largest number of the gradients' format; the largest gradient of a step is ``top / threshold``.
        summary: Whether to return a `PolicySummary`, which needs no memory for the steps.

    Returns:
        Array of scales of shape ``(policies, steps)`` and dtype float32, or a `PolicySummary`.

    Raises:
        TypeError: If an object is no policy.
        ValueError: If the policies cannot be combined, or a threshold is NaN or negative.
    """
    policies, trace = list(policies), np.asarray(thresholds, np.float64)
    numbers = _differing(policies)
    if (
        trace.size == 0
        or trace.ndim not in (1, 2)
        or (trace.ndim == 2 and len(trace) != len(policies))
    ):
        raise ValueError(
            f"thresholds of shape {trace.shape}: expected (steps,) or ({len(policies)}, steps)"
        )
    if not (trace >= 0).all():
        where = tuple(np.argwhere(~(trace >= 0))[0].tolist())
        raise ValueError(
            f"thresholds[{where}]={trace[where]}: expected numbers >= 0; pass 0 if the step overflows at every scale"
        )
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        amax = (top / trace).astype(np.float32)
    done: Array | PolicySummary = _run(
        _policy, policies[0], summary, 0, numbers, (_keys(FLOAT32, trace), amax)
    )
    return done


Row = tuple[Tree, Callable[[Tree, Tree], tuple[Tree, Array, Array]], Callable[[Tree, Array], Tree]]
"""First state; (state, given) -> (state, scale, found_inf); (last state, skipped) -> summary."""


@functools.partial(jax.jit, static_argnames=("stepper", "shared", "summary", "axes"))
def _run(
    stepper: Callable[[Tree, Tree], Row],
    shared: Hashable,
    summary: bool,
    axes: Tree,
    numbers: Tree,
    inputs: Tree,
) -> Tree:
    """Scan the steps of every row; what `shared` leaves open are its `numbers`, along `axes`."""

    def one(numbers: Tree, inputs: Tree) -> Tree:
        first, step, end = stepper(shared, numbers)

        def body(carry: tuple[Tree, Array], given: Tree) -> Tree:
            state, scale, found = step(carry[0], given)
            return (state, carry[1] + found), None if summary else scale

        last, scales = lax.scan(body, (first, jnp.int32(0)), inputs)
        return end(*last) if summary else scales

    each = 0 if jax.tree.leaves(inputs)[0].ndim == 2 else None
    return jax.vmap(one, in_axes=(axes, each))(numbers, inputs)


def _rule(shared: tuple[Format, int], numbers: tuple[machine.Constants, Array]) -> Row:
    (form, delay), (constants, start) = shared, numbers
    zero, bits = jnp.zeros((), np.int32), exact_product.to_bits(form, start)

    def step(state: Tree, given: Array) -> tuple[Tree, Array, Array]:
        queue, trackers = state
        found = given if given.dtype == jnp.bool_ else _above(form, queue.scale, given)
        queue, trackers = machine.step(form, constants, queue, trackers, found)
        return (queue, trackers), exact_product.from_bits(form, queue.scale), found

    def end(state: Tree, skipped: Array) -> Summary:
        queue, (growth, overflow) = state
        return Summary(exact_product.from_bits(form, queue.scale), growth, overflow, skipped)

    return (machine.Queue(bits, jnp.full((delay,), bits), zero), (zero, zero)), step, end


def _policy(like: Policy, numbers: dict[str, Array]) -> Row:
    policy = object.__new__(type(like))  # no check can look at traced numbers
    for field in dataclasses.fields(like):
        object.__setattr__(policy, field.name, numbers.get(field.name, getattr(like, field.name)))

    def step(state: Tree, given: tuple[Array, Array]) -> tuple[Tree, Array, Array]:
        (before, bits, steps), (key, largest) = state, given
        found = _above(FLOAT32, exact_product.to_bits(FLOAT32, jnp.asarray(before.scale)), key)
        arrays: list[Any] = [
            found,
            largest,
            found.astype(np.float32),
        ]  # an Observation is typed for Python's numbers
        after = policy.update_in(jnp, before, Observation(*arrays))
        return (after, bits + jnp.log2(after.scale), steps + 1), jnp.asarray(after.scale), found

    def end(state: Tree, skipped: Array) -> PolicySummary:
        last, bits, steps = state
        return PolicySummary(last.scale, skipped, bits / steps)

    return (jax.tree.map(jnp.asarray, policy.init_in(jnp)), jnp.float32(0), jnp.int32(0)), step, end


def _keys(form: Format, thresholds: npt.NDArray[np.float64]) -> npt.NDArray[np.signedinteger]:
    """Return thresholds as integers in the order of a positive scale's bits: a scale is above c if its bits are above.

    Rounded down, since no scale lies between c and the next smaller number of its format.
    """
    signed = np.dtype(f"i{form.width // 8}")
    with np.errstate(over="ignore", under="ignore"):
        near = thresholds.astype(form.dtype)
        below = np.where(near > thresholds, np.nextafter(near, form.dtype(-np.inf)), near).astype(
            form.dtype
        )
    keys = np.where(below < 0, -1, np.abs(below).view(signed))
    return np.where(np.isnan(thresholds), np.iinfo(signed).max, keys).astype(signed)


def _above(form: Format, bits: Array, key: Array) -> Array:
    return lax.bitcast_convert_type(bits, f"int{form.width}") > key


def _shared_by_rules(rules: Sequence[Rule]) -> tuple[Format, int]:
    for rule in rules:
        machine.check(rule)
    shapes = {(rule.arithmetic.dtype, rule.delay) for rule in rules}
    if len(shapes) != 1:
        raise ValueError(
            f"rules of (dtype, delay) {sorted(shapes)}: expected rules that share them; call sweep for each group"
        )
    dtype, delay = shapes.pop()
    return FORMATS[dtype], delay


def _differing(policies: Sequence[Policy]) -> dict[str, npt.NDArray[np.generic]]:
    """Return the numbers in which policies differ, (policies,), and always the first scale."""
    if not policies or not all(isinstance(policy, Policy) for policy in policies):
        raise TypeError(
            f"{list(policies)!r}: expected one or more policies of ampsim.core.policies; for rules call sweep"
        )
    names = sorted({type(policy).__name__ for policy in policies})
    if len(names) > 1:
        raise ValueError(
            f"policies of types {', '.join(names)}: expected one type; call sweep_policies for each type"
        )
    numbers: dict[str, npt.NDArray[np.generic]] = {}
    for name in (field.name for field in dataclasses.fields(policies[0])):
        values = [getattr(policy, name) for policy in policies]
        if len(set(values)) == 1 and name != "init_scale":
            continue
        if name == "delay" or not all(type(value) in (int, float) for value in values):
            raise ValueError(
                f"{name} is {values[0]!r} and others: expected equal values; call sweep_policies for each value"
            )
        whole = name != "init_scale" and all(type(value) is int for value in values)
        numbers[name] = np.array(values, np.int32 if whole else np.float32)
    return numbers
