"""Functions on trees of gradients: divide by a scale, check that all are finite, select one of two."""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

T = TypeVar("T")
# Arrays in nested lists, tuples, dicts, and registered classes; JAX has no type for them.
Tree: TypeAlias = Any

# flax's name for state that a backward pass returns as a gradient: fp8 scales and amax windows.
OVERWRITE = "_overwrite_with_gradient"


def is_array(x: object) -> bool:
    """Return whether a leaf is an array or a number; functions in equinox modules, e.g., are not.

    Tensors of other packages count as arrays, so that JAX raises instead of skipping them.
    """
    if isinstance(x, type):  # jnp.float32
        return False
    if isinstance(x, (int, float, complex)):
        return True
    return hasattr(x, "__array__") or hasattr(x, "__jax_array__")


def is_inexact(x: Any) -> bool:
    """Return whether a leaf is a floating-point or complex array; integers, bools, and float0 are
    not.
    """
    return is_array(x) and jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def widened(tree: T) -> T:
    """Return a tree with float16 and bfloat16 leaves converted to float32."""
    return jax.tree.map(_widened, tree)  # type: ignore[no-any-return]


def _widened(x: Any) -> Any:
    if not is_inexact(x):
        return x
    return jnp.asarray(x, jnp.promote_types(jnp.result_type(x), jnp.float32))


def multiply(tree: T, scale: Array) -> T:
    """Return a tree times a scale, in its dtypes; float16 and bfloat16 are rounded once."""

    def times(x: Any) -> Any:
        if not is_inexact(x):
            return x
        wide = _widened(x)
        return (wide * scale.astype(wide.dtype)).astype(jnp.result_type(x))

    return jax.tree.map(times, tree)  # type: ignore[no-any-return]


def divide(grads: T, scale: Array, *, widen: bool = True) -> T:
    """Return gradients divided by a scale; state under `OVERWRITE` is unchanged.

    Computed in float32 at least, and returned so with `widen`, else in the dtype of the gradient.
    A quotient and no product with 1 / scale: XLA computes a product again for each of its readers,
    with the conversion from float16 that precedes it, but a quotient once.
    """

    def quotient(path: Sequence[object], g: Any) -> Any:
        if not is_inexact(g) or any(
            getattr(entry, "key", None) == OVERWRITE for entry in path
        ):
            return g
        wide = _widened(g)
        result = wide / scale.astype(wide.dtype)
        return result if widen else result.astype(jnp.result_type(g))

    return jax.tree_util.tree_map_with_path(quotient, grads)  # type: ignore[no-any-return]


def all_finite(tree: Tree, axis_name: str | None = None) -> Array:
    """Return whether all floating-point and complex elements of a tree are finite.

    Args:
        tree: Pytree of arrays of any shape and dtype; leaves that are no arrays are skipped.
        axis_name: Mapped axis (``pmap``, ``shard_map``, ``vmap``) over which the results are
            combined. Without it, a worker that skips alone gets other parameters and another scale
            than the others.

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

    A leaf that both trees share is returned unchanged, so functions and Python numbers of a module
    stay static. Two ``nnx.state`` of one model share all leaves: copy the first, see ``loops.md``.

    Args:
        pred: Array of shape () and dtype bool.
        a: Pytree of arrays and other leaves.
        b: Pytree of the same structure, with arrays of the same shapes and dtypes, and equal other
            leaves.

    Returns:
        Pytree of the same structure.

    Raises:
        ValueError: If `pred` is not one bool, or leaves that are no arrays differ.
    """
    if jnp.shape(pred) != () or jnp.result_type(pred) != jnp.bool_:
        raise ValueError(
            f"pred is {jnp.result_type(pred)}{jnp.shape(pred)}: expected one bool; "
            "pass all_finite(grads), or use select_tree inside vmap"
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
        f"leaves {x!r} and {y!r}: expected arrays or equal leaves; "
        "select others with jax.lax.cond, or remove them"
    )
