"""An optax optimizer that skips the steps whose gradients are not finite."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ampsim.core.extras import load
from ampsim.core.machine import Rule
from ampsim.jax.finite import Tree, all_finite
from ampsim.jax.loss_scale import LossScale
from ampsim.jax.machine import LARGEST_COUNT


class SkipState(NamedTuple):
    """The state of `skip_nonfinite`.

    Attributes:
        loss_scale: scale the next loss with it; changes at every update.
        inner: the wrapped optimizer's state; a skipped step changes no bit of it.
        finite: (), bool: whether the last gradients were finite; True at first.
        notfinite_count: (), int32: non-finite updates since the last finite one.
        total_notfinite: (), int32: non-finite updates since the start; stops at 2^31 - 1.
    """

    loss_scale: LossScale
    inner: Tree
    finite: Array
    notfinite_count: Array
    total_notfinite: Array


def skip_nonfinite(
    optimizer: Any,
    rule: Rule | None = None,
    *,
    axis_name: str | None = None,
    max_consecutive_errors: int | None = None,
) -> Any:
    """Wrap an optax optimizer: the result takes scaled gradients, unscales them, and skips if any is not finite.

    A skip gives zero updates and leaves the inner state as it is: moments, counts, schedules. ::

        tx = skip_nonfinite(optax.adam(1e-3), Rule())
        state = tx.init(params)
        grads = jax.grad(lambda p: state.loss_scale.scale(loss(p)))(params)
        updates, state = tx.update(grads, state, params)

    Args:
        optimizer: an ``optax.GradientTransformation``.
        rule: of the loss scale; torch's by default.
        axis_name: gradients that are not averaged over this mapped axis are finite only if all are.
        max_consecutive_errors: non-finite updates in a row that are skipped, as in ``optax.apply_if_finite``: the next
            one is given up on and taken, so that a run which only skips ends in NaN and not in silence. A scale needs
            log2(init_scale) skips to fall to 1. None: skip them all.

    Returns:
        An ``optax.GradientTransformationExtraArgs`` whose state is a `SkipState`.

    Raises:
        ValueError: a negative `max_consecutive_errors`.
    """
    if max_consecutive_errors is not None and max_consecutive_errors < 0:
        raise ValueError(
            f"max_consecutive_errors={max_consecutive_errors}: expected at least 0; to skip without end pass None"
        )
    optax = load("optax")
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Tree) -> SkipState:
        return SkipState(
            LossScale.create(rule), inner.init(params), jnp.bool_(1), jnp.int32(0), jnp.int32(0)
        )

    def update(
        grads: Tree, state: SkipState, params: Tree = None, **extra: Tree
    ) -> tuple[Tree, SkipState]:
        grads = state.loss_scale.unscale(grads, widen=True)
        finite = all_finite(grads, axis_name)
        count = jnp.where(finite, 0, _one_more(state.notfinite_count))
        gives_up = False if max_consecutive_errors is None else count > max_consecutive_errors

        def step() -> tuple[Tree, Tree]:
            return inner.update(grads, state.inner, params, **extra)  # type: ignore[no-any-return]

        def skip() -> tuple[Tree, Tree]:
            shapes, _ = jax.eval_shape(step)
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), state.inner

        updates, after = lax.cond(finite | gives_up, step, skip)
        total = jnp.where(finite, state.total_notfinite, _one_more(state.total_notfinite))
        return updates, SkipState(state.loss_scale.update(~finite), after, finite, count, total)

    return optax.GradientTransformationExtraArgs(init, update)


def _one_more(count: Array) -> Array:
    return count + (count < LARGEST_COUNT)
