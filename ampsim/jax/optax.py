"""An optax optimizer that skips the steps whose gradients are not finite."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ampsim.core.machine import Rule
from ampsim.jax._optional import load
from ampsim.jax.finite import Tree, all_finite
from ampsim.jax.loss_scale import LossScale


class SkipState(NamedTuple):
    """The state of `skip_nonfinite`."""

    loss_scale: LossScale  # scale the next loss with it; changes at every update
    inner: Tree  # the wrapped optimizer's state; a skipped step changes no bit of it
    finite: Array  # (), bool: whether the last update was a step; True at first


def skip_nonfinite(optimizer: Any, rule: Rule | None = None, *, axis_name: str | None = None) -> Any:
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

    Returns:
        An ``optax.GradientTransformationExtraArgs`` whose state is a `SkipState`.
    """
    optax = load("optax", "jax")
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Tree) -> SkipState:
        return SkipState(LossScale.create(rule), inner.init(params), jnp.bool_(1))

    def update(grads: Tree, state: SkipState, params: Tree = None, **extra: Tree) -> tuple[Tree, SkipState]:
        grads = state.loss_scale.unscale(grads, widen=True)
        finite = all_finite(grads, axis_name)

        def step() -> tuple[Tree, Tree]:
            return inner.update(grads, state.inner, params, **extra)  # type: ignore[no-any-return]

        def skip() -> tuple[Tree, Tree]:
            shapes, _ = jax.eval_shape(step)
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), state.inner

        updates, after = lax.cond(finite, step, skip)
        return updates, SkipState(state.loss_scale.update(~finite), after, finite)

    return optax.GradientTransformationExtraArgs(init, update)
