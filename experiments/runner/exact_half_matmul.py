"""Products and convolutions in half precision on a CPU: torch's numbers to the last bit, in a fifth of its time.

Under `experiments.KERNELS` torch multiplies two numbers of 16 bits in float32, which holds their product exactly, adds
in float32, and rounds the sum once. The order of its additions follows from which operand is transposed. The same
additions are made here, of many elements at a time: `half_kernels`.
"""

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments import KERNELS

LANES, IN_TURN, DOTS = 4, 1, 0  # the orders of `half_kernels`, which takes half a second to import
WORTH = {
    LANES: 1 << 12,
    IN_TURN: 1 << 12,
    DOTS: 1 << 14,
}  # multiplications below which torch is done before
NARROW = 16  # columns below which torch is faster where the second operand is transposed


@functools.cache
def install() -> Any:
    """Replace torch's products and convolutions in this process, for good; nothing without the common kernels or numba.

    Returns:
        What holds the replacement as long as it lives, which is as long as the process.
    """
    if not os.environ.items() >= KERNELS.items() or find_spec("numba") is None:
        return None
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    ours: dict[str, Callable[..., Any]] = {
        "mm": product,
        "addmm": product_and_sum,
        "_slow_conv2d_forward": convolution,
        "_slow_conv2d_backward.output_mask": convolution_backward,
    }
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Warning only once for all operators"
        )  # torch says that it is replaced
        for name, function in ours.items():
            theirs = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(
                name,
                functools.partial(function, theirs),
                "CPU",
                with_keyset=True,
                allow_override=True,
            )
    return library


def product(torches: Any, keys: torch.DispatchKeySet, a: Tensor, b: Tensor) -> Tensor:
    """Return a times b."""
    order = order_of(a, b)
    if order is None:
        out: Tensor = torches.call_boxed(keys, a, b)
        return out
    return multiplied(a, b, 0, order)


def product_and_sum(
    torches: Any,
    keys: torch.DispatchKeySet,
    bias: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """Return a times b, plus a bias per column; all else is torch's."""
    order = order_of(a, b) if bias.dtype is a.dtype and beta == alpha == 1 else None
    if order is None or order == IN_TURN or bias.shape != b.shape[1:] or not bias.is_contiguous():
        out: Tensor = torches.call_boxed(keys, bias, a, b, beta=beta, alpha=alpha)
        return out
    return multiplied(a, b, bias.data_ptr(), order)


def multiplied(a: Tensor, b: Tensor, bias: int, order: int) -> Tensor:
    """Return a times b plus what is at the address `bias`, unless that is 0, added up in one of the orders."""
    (m, k), n, dtype = a.shape, b.shape[1], a.dtype
    out = torch.empty(m, n, dtype=dtype)
    kernels().product(
        a.data_ptr(), b.data_ptr(), bias, out.data_ptr(), (m, k, n), order, dtype is torch.bfloat16
    )
    return out


@functools.cache
def kernels() -> Any:
    """Return `half_kernels`, imported at the first product: an import by its name takes half a small product's time."""
    return import_module("experiments.runner.half_kernels")


def order_of(a: Tensor, b: Tensor) -> int | None:
    """Return in which order torch adds up an element of (m, k) times (k, n); None where it is left to torch."""
    if a.dtype is not torch.float16 and a.dtype is not torch.bfloat16:
        return None
    (m, k), n = a.shape, b.shape[1]
    if min(m, k, n) < 2:
        return None
    first, second = a.stride(), b.stride()
    if second == (n, 1):
        order = LANES if first == (k, 1) else IN_TURN if first == (1, m) else None
    else:
        order = DOTS if second == (1, k) and first == (k, 1) and n >= NARROW else None
    return None if order is None or m * k * n < WORTH[order] else order


def bits(x: Tensor) -> NDArray[np.uint16]:
    """Return the bits of numbers of 16 bits, in the same memory."""
    return x.view(torch.uint16).numpy()


Pair = Sequence[int]


def geometry_of(
    x: Tensor, weight: Tensor, stride: Pair, padding: Pair
) -> tuple[int, int, int, int] | None:
    """Return kernel, stride, padding and side of what comes out of a convolution; None where it is left to torch."""
    square = (
        x.shape[2] == x.shape[3] and weight.shape[2] == weight.shape[3] and stride[0] == stride[1]
    )
    if x.dtype not in (torch.float16, torch.bfloat16) or not square or padding[0] != padding[1]:
        return None
    side = (x.shape[2] + 2 * padding[0] - weight.shape[2]) // stride[0] + 1
    return weight.shape[2], stride[0], padding[0], side


def convolution(
    torches: Any, keys: torch.DispatchKeySet, x: Tensor, weight: Tensor, kernel_size: Pair, bias: Tensor | None,
    stride: Pair, padding: Pair,
) -> Tensor:  # fmt: skip
    """Return the convolution of (batch, channels, side, side) without a bias."""
    geometry = geometry_of(x, weight, stride, padding)
    if bias is not None or geometry is None:
        out: Tensor = torches.call_boxed(keys, x, weight, kernel_size, bias, stride, padding)
        return out
    from experiments.runner import half_convolutions

    out = torch.empty(len(x), len(weight), geometry[3] ** 2, dtype=x.dtype)
    args = bits(x.contiguous()), bits(weight.contiguous().flatten(1))
    half_convolutions.convolve(*args, geometry, bits(out), x.dtype == torch.bfloat16)
    return out.view(len(x), len(weight), geometry[3], geometry[3])


def convolution_backward(
    torches: Any, keys: torch.DispatchKeySet, given: Tensor, x: Tensor, weight: Tensor, kernel_size: Pair,
    stride: Pair, padding: Pair, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return the gradients of what `convolution` was given, where all of weight's are asked."""
    geometry = geometry_of(x, weight, stride, padding)
    of_x, of_weight, of_bias = output_mask
    if geometry is None or of_bias or not of_weight:
        gradients: Callable[..., Any] = torches.call_boxed
        return gradients(keys, given, x, weight, kernel_size, stride, padding, output_mask)  # type: ignore[no-any-return]
    from experiments.runner import half_convolutions

    back = torch.empty_like(x if of_x else x[:0], memory_format=torch.contiguous_format)
    to_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    args = (
        bits(given.contiguous().flatten(2)),
        bits(x.contiguous()),
        bits(weight.contiguous().flatten(1)),
    )
    out = bits(back), bits(to_weight.flatten(1))
    half_convolutions.convolve_back(*args, geometry, out, x.dtype == torch.bfloat16)
    return back if of_x else None, to_weight, None
