"""Check that a tree of arrays is finite, and select one of two trees."""

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
    """Return whether a leaf is an array or a number; other leaves of equinox modules, e.g. functions, are not.

    Tensors of other packages count as arrays, so that JAX raises instead of skipping them.
    """
    if isinstance(x, type):  # jnp.float32
        return False
    return (
        isinstance(x, (int, float, complex))
        or hasattr(x, "__array__")
        or hasattr(x, "__jax_array__")
    )


def is_inexact(x: Any) -> bool:
    """Return whether a leaf is a floating-point or complex array; integers, bools, and float0 are not."""
    return is_array(x) and jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def all_finite(tree: Tree, axis_name: str | None = None) -> Array:
    """Return whether all floating-point and complex elements of a tree are finite.

    Args:
        tree: Pytree of arrays of any shape and dtype; leaves that are no arrays are skipped.
        axis_name: Mapped axis (``pmap``, ``shard_map``, ``vmap``) over which the results are combined. Without it, a
            worker that skips alone gets other parameters and another scale than the others.

    Returns:
        Array of shape () and dtype bool; True for an empty tree.
    """
    parts = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree) if is_inexact(x)]
    finite: Array = functools.reduce(jnp.logical_and, parts, jnp.bool_(1))
    if axis_name is None:
        return finite
    everywhere: Array = lax.pmin(finite.astype(jnp.int32), axis_name)  # type: ignore[no-untyped-call]
    return everywhere.astype(jnp.bool_)


def select_tree(pred: ArrayLike, a: T, b: T) -> T:
    """Return tree `a` if `pred` else tree `b`, without changing a bit.

    A leaf that both trees share is returned unchanged, so functions and Python numbers of a module stay static. Two
    ``nnx.state`` of one model share all leaves: copy the first, see ``loops.md``.

    Args:
        pred: Array of shape () and dtype bool.
        a: Pytree of arrays and other leaves.
        b: Pytree of the same structure, with arrays of the same shapes and dtypes, and equal other leaves.

    Returns:
        Pytree of the same structure.

    Raises:
        ValueError: If `pred` is not one bool, or leaves that are no arrays differ.
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
        f"leaves {x!r} and {y!r}: expected arrays or equal leaves; select others with jax.lax.cond, or remove them"
    )
