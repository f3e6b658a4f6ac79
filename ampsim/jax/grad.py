"""Gradients with loss scaling: ``jax.value_and_grad`` in flax's shape, and an optimizer that skips."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from ampsim.core.machine import Rule
from ampsim.jax._optional import load
from ampsim.jax.finite import all_finite

if TYPE_CHECKING:
    from ampsim.jax.loss_scale import LossScale

S = TypeVar("S", bound="LossScale")


class Result(NamedTuple, Generic[S]):
    """What flax's ``DynamicScaleResult`` holds, in its order."""

    loss_scale: S  # updated
    finite: Array  # (), bool
    aux: Any  # the loss, or (loss, aux) with has_aux
    grad: Any  # unscaled; float16 and bfloat16 widened to float32


def value_and_grad(
    loss_scale: S,
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    axis_name: str | None = None,
) -> Callable[..., Result[S]]:
    """``jax.value_and_grad`` of the scaled loss, unscaled again, checked, and the loss scale updated.

    As ``flax.training.dynamic_scale.DynamicScale.value_and_grad``, with these differences:

    1. The loss is the one that `fun` returned; flax returns fl(fl(S * loss) / S), inf where that overflows.
    2. Gradients that are wider than float32 stay so.
    3. The gradient of float16 is multiplied by the reciprocal of S, see `LossScale.unscale`.

    The unscaled gradients are checked, so one that only the division by a scale below 1 makes inf is found too.

    Args:
        loss_scale: the scale in force.
        fun: returns a scalar loss, or (loss, aux) with `has_aux`.
        argnums: arguments to differentiate, as in ``jax.value_and_grad``.
        has_aux: see `fun`.
        axis_name: average the gradients over this mapped axis first; inf on one worker is then inf on all.

    Returns:
        A function of `fun`'s arguments, returning a `Result`.
    """

    def scaled(*args: Any, **kwargs: Any) -> Any:
        out = fun(*args, **kwargs)
        loss = out[0] if has_aux else out
        return loss_scale.scale(loss), out

    differentiate = jax.grad(scaled, argnums, has_aux=True)

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Result[S]:
        if axis_name is not None:
            args = _own_copies(args, argnums, axis_name)
        grads, out = differentiate(*args, **kwargs)
        grads = loss_scale.unscale(grads, widen=True)
        if axis_name is not None:
            grads = lax.pmean(grads, axis_name)  # type: ignore[no-untyped-call]
        finite = all_finite(grads)
        return Result(loss_scale.update(~finite), finite, out, grads)

    return wrapped


def _own_copies(args: tuple[Any, ...], argnums: int | Sequence[int], axis_name: str) -> tuple[Any, ...]:
    """Arguments to differentiate as values of their own on each worker of the axis.

    ``shard_map`` with its default check_vma has summed the gradient of a shared one already, and the mean of those
    sums is the sum; flax returns that.
    """
    chosen = {n % len(args) for n in ((argnums,) if isinstance(argnums, int) else argnums)}

    def own(x: Any) -> Any:
        try:
            return lax.pcast(x, axis_name, to="varying")
        except ValueError:  # it is one
            return x

    return tuple(jax.tree.map(own, arg) if i in chosen else arg for i, arg in enumerate(args))


class SkipState(NamedTuple):
    """The state of `skip_nonfinite`."""

    loss_scale: "LossScale"  # scale the next loss with it; changes at every update
    inner: Any  # the wrapped optimizer's state; a skipped step changes no bit of it
    finite: Array  # (), bool: whether the last update was a step; True at first


def skip_nonfinite(optimizer: Any, rule: Rule | None = None, *, axis_name: str | None = None) -> Any:
    """An optax optimizer that takes scaled gradients, unscales them, and skips if any is not finite.

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

    def init(params: Any) -> SkipState:
        from ampsim.jax.loss_scale import LossScale

        return SkipState(LossScale.create(rule), inner.init(params), jnp.bool_(1))

    def update(grads: Any, state: SkipState, params: Any = None, **extra: Any) -> tuple[Any, SkipState]:
        grads = state.loss_scale.unscale(grads, widen=True)
        finite = all_finite(grads, axis_name)

        def step() -> tuple[Any, Any]:
            return inner.update(grads, state.inner, params, **extra)  # type: ignore[no-any-return]

        def skip() -> tuple[Any, Any]:
            shapes, _ = jax.eval_shape(step)
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), state.inner

        updates, after = lax.cond(finite, step, skip)
        return updates, SkipState(state.loss_scale.update(~finite), after, finite)

    return optax.GradientTransformationExtraArgs(init, update)
