"""Many policies of one kind over one trace of ceilings, or each over its own: a vmap of a scan.

Policies outside the backoff family have no events to jump between, so every step is computed; the grid is what runs
side by side.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from ampsim.core.policies.base import Observation, Policy, PolicyState
from ampsim.jax.exact_product import FLOAT32, to_bits
from ampsim.jax.finite import Tree
from ampsim.jax.sweep import keys


class PolicySummary(NamedTuple):
    """The end of each policy's run; JAX arrays of shape (policies,)."""

    scale: Array  # float32, in force at the end
    skipped: Array  # int32: overflows
    mean_log2_scale: Array  # float32: of the scale in force after each update


def sweep_policies(
    policies: Sequence[Policy], ceilings: npt.ArrayLike, *, top: float = 65504.0, summary: bool = False
) -> Array | PolicySummary:
    """Return the scales of many policies after each update; row i equals ``replay_ceilings(policies[i], ceilings)``.

    To the last bit, except for `LogMax`, see `ampsim.jax.policy`. Numbers in which the policies differ are data, so
    that a grid is compiled once.

    Args:
        policies: of one type, one ``delay``, and equal in all that is no number.
        ceilings: shape (steps,) for all, or (policies, steps): the largest scale that does not overflow, >= 0.
        top: largest number of the gradients' format; the largest gradient of a step is ``top / ceiling``.
        summary: return a `PolicySummary`, which needs no memory for the steps.

    Returns:
        float32 array of shape (policies, steps), or a `PolicySummary`.

    Raises:
        ValueError, TypeError: policies that do not belong together; ceilings that are NaN, negative or none.
    """
    policies, trace = list(policies), np.asarray(ceilings, np.float64)
    like, varying = _shared(policies)
    if trace.size == 0 or trace.ndim not in (1, 2) or (trace.ndim == 2 and len(trace) != len(policies)):
        raise ValueError(f"ceilings of shape {trace.shape}: expected (steps,) or ({len(policies)}, steps)")
    if not (trace >= 0).all():
        where = tuple(np.argwhere(~(trace >= 0))[0].tolist())
        raise ValueError(f"ceilings[{where}]={trace[where]}: expected numbers >= 0; a step that always overflows has 0")
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        amax = (top / trace).astype(np.float32)
    done: Array | PolicySummary = _run(like, summary, varying, keys(FLOAT32, trace), amax)
    return done


def _shared(policies: Sequence[Policy]) -> tuple[Policy, dict[str, npt.NDArray[np.generic]]]:
    """Return one of them, and the numbers in which they differ, (policies,)."""
    if not policies or not all(isinstance(policy, Policy) for policy in policies):
        raise TypeError(f"{list(policies)!r}: expected one or more policies of ampsim.core.policies; sweep takes rules")
    names = sorted({type(policy).__name__ for policy in policies})
    if len(names) > 1:
        raise ValueError(f"policies of types {', '.join(names)}: expected one type; sweep each apart")
    like = policies[0]
    varying: dict[str, npt.NDArray[np.generic]] = {}
    for name in (field.name for field in dataclasses.fields(like)):
        values = [getattr(policy, name) for policy in policies]
        if len(set(values)) == 1:
            continue
        if name == "delay" or not all(type(value) in (int, float) for value in values):
            raise ValueError(f"{name} is {values[0]!r} and others: expected one and the same; sweep each apart")
        whole = all(type(value) is int for value in values)
        varying[name] = np.array(values, np.int32 if whole else np.float32)
    return like, varying


def _with(policy: Policy, values: dict[str, Array]) -> Policy:
    """Return the policy with traced numbers in it, which no check can look at."""
    made = object.__new__(type(policy))
    for field in dataclasses.fields(policy):
        object.__setattr__(made, field.name, values.get(field.name, getattr(policy, field.name)))
    return made


@functools.partial(jax.jit, static_argnames=("like", "summary"))
def _run(like: Policy, summary: bool, varying: dict[str, Array], above: Array, amax: Array) -> Tree:
    steps = 0 if above.ndim == 2 else None
    one = functools.partial(_run_one, like, summary)
    if not varying and steps is None:
        return jax.tree.map(lambda leaf: leaf[None], one({}, above, amax))
    return jax.vmap(one, in_axes=(0, steps, steps))(varying, above, amax)


def _run_one(like: Policy, summary: bool, values: dict[str, Array], above: Array, amax: Array) -> Tree:
    policy = _with(like, values)

    def body(carry: tuple[PolicyState, Array, Array], given: tuple[Array, Array]) -> Tree:
        state, skipped, bits = carry
        key, largest = given
        found = lax.bitcast_convert_type(to_bits(FLOAT32, jnp.asarray(state.scale)), np.int32) > key
        after = policy.update_in(jnp, state, _observed(found, largest))
        return (after, skipped + found, bits + jnp.log2(after.scale)), None if summary else after.scale

    start = (jax.tree.map(jnp.asarray, policy.init_in(jnp)), jnp.int32(0), jnp.float32(0))
    (state, skipped, bits), scales = lax.scan(body, start, (above, amax))
    return PolicySummary(state.scale, skipped, bits / above.shape[0]) if summary else scales


def _observed(found: Array, largest: Array) -> Observation:
    arrays: list[Any] = [found, largest, found.astype(np.float32)]  # an Observation is typed for Python's numbers
    return Observation(*arrays)
