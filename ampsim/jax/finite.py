"""Whether a tree of arrays is finite, and choosing between two trees."""

import functools
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

T = TypeVar("T")
Tree: TypeAlias = (
    Any  # arrays in nested lists, tuples, dicts and registered classes; JAX has no type for them
)


def is_array(x: object) -> bool:
    """Return whether a leaf is an array or a number; what equinox keeps in a module beside them, as functions, is not.

    A foreign tensor counts as an array, so that JAX refuses it: it is not passed over unchecked.
    """
    if isinstance(x, type):  # jnp.float32
        return False
    return (
        isinstance(x, (int, float, complex))
        or hasattr(x, "__array__")
        or hasattr(x, "__jax_array__")
    )


def is_inexact(x: Any) -> bool:
    """Return whether a leaf is floating point or complex; integers, bools, JAX's float0 and no arrays are neither."""
    return is_array(x) and jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def all_finite(tree: Tree, axis_name: str | None = None) -> Array:
    """Return whether every floating-point or complex element of a tree is neither inf nor NaN; True for an empty tree.

    Args:
        tree: arrays of any shape and dtype; leaves that are no arrays are passed over.
        axis_name: a mapped axis (``pmap``, ``shard_map``, ``vmap``): True only if it is true on all of it. One
            worker that sees inf and skips alone ends with other parameters and another scale than the rest.

    Returns:
        Array of shape (), bool.
    """
    parts = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree) if is_inexact(x)]
    finite: Array = functools.reduce(jnp.logical_and, parts, jnp.bool_(1))
    if axis_name is None:
        return finite
    everywhere: Array = lax.pmin(finite.astype(jnp.int32), axis_name)  # type: ignore[no-untyped-call]
    return everywhere.astype(jnp.bool_)


def select_tree(pred: ArrayLike, a: T, b: T) -> T:
    """Return tree `a` if `pred` else tree `b`, leaf by leaf and bit by bit; both of one structure.

    A leaf that both trees share is returned as it is, so that a module's functions and Python numbers stay static. Two
    ``nnx.state`` of one model share every leaf: copy the first, see ``loops.md``.

    Args:
        pred: shape (), bool.
        a: arrays, and leaves that are no arrays.
        b: arrays of the same shapes and dtypes, and the same other leaves.

    Raises:
        ValueError: `pred` is not one bool, or leaves that are no arrays differ.
    """
    if jnp.shape(pred) != () or jnp.result_type(pred) != jnp.bool_:
        raise ValueError(
            f"pred is {jnp.result_type(pred)}{jnp.shape(pred)}: expected one bool; pass all_finite(grads), "
            "or use select_tree inside vmap"
        )
    return jax.tree.map(functools.partial(_select, pred), a, b)  # type: ignore[no-any-return]


def _select(pred: ArrayLike, x: Any, y: Any) -> Any:
    if x is y:
        return x
    if is_array(x) and is_array(y):
        return jnp.where(pred, x, y)
    if type(x) is type(y) and x == y:
        return x
    raise ValueError(
        f"leaves {x!r} and {y!r}: expected arrays, or one and the same; select what differs by jax.lax.cond, or drop it"
    )
