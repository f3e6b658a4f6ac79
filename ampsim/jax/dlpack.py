"""Tensors of torch as arrays of JAX and back, without a copy."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from ampsim.core.extras import load
from ampsim.jax.finite import T, Tree
from ampsim.jax.machine import has_64_bits


def to_jax(tree: Tree) -> Tree:
    """Return the torch tensors of a tree as JAX arrays that share their memory, on the device they are on.

    JAX takes its arrays for constant: while one is in use, do not write to the tensor. A tensor that
    requires a gradient is taken without its graph.

    Args:
        tree: lists, tuples, dicts ... of ``torch.Tensor``: contiguous, and on the CPU aligned to 64 bytes, as
            every tensor is that does not begin inside of another one.

    Raises:
        TypeError: a leaf is no tensor, or of a dtype JAX does not hold; 64 bits need jax_enable_x64.
        ValueError: a tensor that JAX could only copy.
    """
    tensor_type = load("torch").Tensor
    return jax.tree.map(lambda leaf: _to_jax(leaf, tensor_type), tree)


def _to_jax(leaf: object, tensor_type: type) -> Array:
    if not isinstance(leaf, tensor_type):
        raise TypeError(f"a {type(leaf).__name__}: expected a torch.Tensor; convert it first")
    tensor: Any = leaf
    if not tensor.is_contiguous():
        raise ValueError(
            f"a tensor of strides {tuple(tensor.stride())} and shape {tuple(tensor.shape)}: expected a contiguous "
            "one; pass tensor.contiguous()"
        )
    if tensor.element_size() // (2 if tensor.is_complex() else 1) > 4 and not has_64_bits():
        raise TypeError(
            f"a tensor of {tensor.dtype}, which JAX would round to 32 bits: expected at most 32 bits a number; "
            "convert it, or set jax_enable_x64"
        )
    try:
        array: Array = jax.dlpack.from_dlpack(tensor.detach(), copy=False)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise _refusal(tensor, error) from error
    if str(array.dtype) != str(tensor.dtype).removeprefix("torch."):
        raise TypeError(
            f"a tensor of {tensor.dtype}, which JAX makes {array.dtype}: expected one that both have"
        )
    return array


def _refusal(tensor: Any, error: Exception) -> Exception:
    if "align" in str(error):
        return ValueError(
            f"a tensor at address {tensor.data_ptr():#x}: expected one aligned to 64 bytes, which one that "
            "begins inside of another is not; pass tensor.clone()"
        )
    return TypeError(
        f"a tensor of {tensor.dtype} on {tensor.device}: expected one that JAX holds ({error}); convert it"
    )


def to_torch(tree: Tree) -> Tree:
    """Return the JAX arrays of a tree as torch tensors that share their memory, on the device they are on.

    A JAX array is constant to JAX: do not write to the tensor in place, or pass ``tensor.clone()`` on.

    Raises:
        TypeError: a leaf is no array, is traced by a transformation, or is of a dtype torch does not hold.
        ValueError: an array spread over several devices.
    """
    from_dlpack = load("torch").from_dlpack
    return jax.tree.map(lambda leaf: _to_torch(leaf, from_dlpack), tree)


def _to_torch(array: object, from_dlpack: Callable[[Array], T]) -> T:
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        raise TypeError(
            f"a {type(array).__name__}: expected a jax.Array outside of jit; convert it first"
        )
    if len(array.devices()) != 1:
        raise ValueError(
            f"an array on {len(array.devices())} devices: expected one; pass one shard of it"
        )
    try:
        return from_dlpack(array)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise TypeError(
            f"an array of {array.dtype}: expected a dtype of torch ({error}); convert it"
        ) from error
