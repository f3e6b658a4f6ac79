"""Zero-copy conversion between torch tensors and JAX arrays."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from ampsim.core.extras import load
from ampsim.jax.finite import T, Tree
from ampsim.jax.machine import has_64_bits


def to_jax(tree: Tree) -> Tree:
    """Convert the torch tensors of a tree to JAX arrays that share their memory.

    JAX treats arrays as constant: do not write to a tensor while its array is in use. The autograd graph of a tensor
    is dropped.

    Args:
        tree: Pytree of ``torch.Tensor``. Tensors must be contiguous; on the CPU, they must be aligned to 64 bytes, as
            tensors are that do not start inside another tensor.

    Returns:
        Pytree of ``jax.Array`` on the same devices.

    Raises:
        TypeError: If a leaf is no tensor, or JAX does not support its dtype; 64 bits need jax_enable_x64.
        ValueError: If JAX would have to copy a tensor.
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
            "tensor; pass tensor.contiguous()"
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
            f"a tensor of {tensor.dtype}, which JAX converts to {array.dtype}: expected a dtype of both"
        )
    return array


def _refusal(tensor: Any, error: Exception) -> Exception:
    if "align" in str(error):
        return ValueError(
            f"a tensor at address {tensor.data_ptr():#x}: expected alignment to 64 bytes; a tensor that "
            "starts inside another one has none; pass tensor.clone()"
        )
    return TypeError(
        f"a tensor of {tensor.dtype} on {tensor.device}: expected a dtype and device of JAX ({error}); convert it"
    )


def to_torch(tree: Tree) -> Tree:
    """Convert the JAX arrays of a tree to torch tensors that share their memory.

    JAX treats arrays as constant: do not write to a tensor in place; write to ``tensor.clone()`` instead.

    Args:
        tree: Pytree of ``jax.Array``, each on one device.

    Returns:
        Pytree of ``torch.Tensor`` on the same devices.

    Raises:
        TypeError: If a leaf is no array, is traced, or has a dtype that torch does not support.
        ValueError: If an array is on several devices.
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
