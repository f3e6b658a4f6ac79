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
        loss_scale: Loss scale of the next loss; each update changes it.
        inner: State of the wrapped optimizer; a skipped step changes no bit of it.
        finite: Whether the last gradients were finite, of shape () and dtype bool; True at first.
        notfinite_count: Number of non-finite updates since the last finite one, of shape () and dtype int32.
        total_notfinite: Number of non-finite updates since the start, of shape () and dtype int32; at most 2^31 - 1.
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
    """Wrap an optax optimizer to unscale gradients and skip non-finite steps.

    A skipped step returns zero updates and keeps the inner state: moments, counts, schedules. ::

        tx = skip_nonfinite(optax.adam(1e-3), Rule())
        state = tx.init(params)
        grads = jax.grad(lambda p: state.loss_scale.scale(loss(p)))(params)
        updates, state = tx.update(grads, state, params)

    Args:
        optimizer: An ``optax.GradientTransformation``.
        rule: Rule of the loss scale; default: torch's.
        axis_name: Mapped axis over which the finite checks are combined, if gradients are not averaged over it.
        max_consecutive_errors: Number of consecutive non-finite updates to skip, at least 0, as in
            ``optax.apply_if_finite``. The next one is applied, so that a run that only skips ends in NaN. A scale needs
            log2(init_scale) skips to fall to 1. None skips all of them.

    Returns:
        ``optax.GradientTransformationExtraArgs`` whose state is a `SkipState`.

    Raises:
        ValueError: If `max_consecutive_errors` is negative.
    """
    if max_consecutive_errors is not None and max_consecutive_errors < 0:
        raise ValueError(
            f"max_consecutive_errors={max_consecutive_errors}: expected at least 0; for no limit pass None"
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
