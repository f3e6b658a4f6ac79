"""Gradients with loss scaling: ``jax.value_and_grad`` in flax's shape."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import jax
from jax import Array, lax

from ampsim.jax.trees import Tree, all_finite, is_inexact

T = TypeVar("T")


class Scaler(Protocol):
    """Interface of a scaler, e.g. a `LossScale`."""

    def scale(self, tree: T) -> T:
        """Return a tree of losses, scaled."""

    def unscale(self, grads: T, *, widen: bool = False) -> T:
        """Return a tree of gradients, unscaled; with `widen` in float32 at least."""

    def update(self, found_inf: Array) -> Self:
        """Return the scaler after an iteration."""


S = TypeVar("S", bound=Scaler)


class Result(NamedTuple, Generic[S]):
    """The fields of flax's ``DynamicScaleResult``, in its order.

    Attributes:
        loss_scale: Updated loss scale.
        finite: Array of shape () and dtype bool: whether all gradients are finite.
        aux: The loss, or (loss, aux) with ``has_aux``.
        grad: Unscaled gradients; float16 and bfloat16 are widened to float32.
    """

    loss_scale: S
    finite: Array
    aux: Tree
    grad: Tree


def value_and_grad(
    loss_scale: S,
    fun: Callable[..., Tree],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    axis_name: str | None = None,
    *,
    grad: Callable[..., Callable[..., Tree]] = jax.value_and_grad,
) -> Callable[..., Result[S]]:
    """Return ``jax.value_and_grad`` with loss scaling.

    The function scales the loss, unscales and checks the gradients, and updates the loss scale.

    As ``flax.training.dynamic_scale.DynamicScale.value_and_grad``, with these differences:

    1. The returned loss is that of `fun`; flax returns fl(fl(S * loss) / S), which is inf if S *
    loss overflows.
    2. Gradients wider than float32 keep their dtype.

    The unscaled gradients are checked, so an overflow in the division by a scale below 1 is found
    too.

    Args:
        loss_scale: Current loss scale.
        fun: Function that returns a scalar loss, or (loss, aux) with `has_aux`.
        argnums: Arguments to differentiate, as in ``jax.value_and_grad``.
        has_aux: Whether `fun` returns (loss, aux).
        axis_name: Mapped axis over which gradients are averaged first; inf on one worker is then
            inf on all.
        grad: Function that differentiates, called as ``grad(f, has_aux=True)``, and with
            ``argnums`` if not 0. For whole modules, pass ``equinox.filter_value_and_grad`` or
            ``flax.nnx.value_and_grad``.

    Returns:
        Function with the arguments of `fun` that returns a `Result`.
    """

    def scaled(*args: Tree, **kwargs: Tree) -> Tree:
        out = fun(*args, **kwargs)
        loss = out[0] if has_aux else out
        return loss_scale.scale(loss), out

    chosen = {} if argnums == 0 else {"argnums": argnums}
    differentiate = grad(scaled, has_aux=True, **chosen)

    @functools.wraps(fun)
    def wrapped(*args: Tree, **kwargs: Tree) -> Result[S]:
        if axis_name is not None:
            args = _own_copies(
                args, argnums, axis_name, numbers=grad is jax.value_and_grad
            )
        (_, out), grads = differentiate(*args, **kwargs)
        grads = loss_scale.unscale(grads, widen=True)
        if axis_name is not None:
            grads = lax.pmean(grads, axis_name)  # type: ignore[no-untyped-call]
        finite = all_finite(grads)
        return Result(loss_scale.update(~finite), finite, out, grads)

    return wrapped


def _own_copies(
    args: tuple[Tree, ...],
    argnums: int | Sequence[int],
    axis_name: str,
    *,
    numbers: bool,
) -> tuple[Tree, ...]:
    """Return the arguments to differentiate as values of their own on each worker of the axis.

    ``shard_map`` with its default check_vma has summed the gradient of a shared one already, and
    the mean of those sums is the sum; flax returns that. Python's numbers, if not `numbers`, are no
    parameters but a module's settings.
    """
    axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    manual = jax.sharding.get_abstract_mesh().manual_axes
    if not {*axes} & {*manual}:  # in vmap, values are their own already
        return args
    chosen = {
        n % len(args) for n in ((argnums,) if isinstance(argnums, int) else argnums)
    }

    def own(x: Array) -> Array:
        is_setting = isinstance(x, (float, complex)) and not numbers
        if is_setting or not is_inexact(x):
            return x
        try:
            return _varying(x, axis_name)
        except ValueError:  # it is one
            return x

    return tuple(
        jax.tree.map(own, arg) if i in chosen else arg for i, arg in enumerate(args)
    )


def _varying(x: Array, axis_name: str) -> Array:
    versioned: Any = lax  # it has pcast since JAX 0.8
    if hasattr(lax, "pcast"):
        return versioned.pcast(x, axis_name, to="varying")  # type: ignore[no-any-return]
    return versioned.pvary(x, axis_name)  # type: ignore[no-any-return]
