"""Matrix products of halves as a device computes them: this CPU, or an NVIDIA card's matrix unit.

A float32 number holds the product of two halves exactly, so devices differ only in how they add.

torch's CPU kernels add float32 numbers and round each sum to nearest. Which operand is transposed
decides the order of the additions. With `experiments.KERNELS` the same additions are made here for
many elements at a time, which gives torch's bits in less time.

A matrix unit adds a block of products and its accumulator at once. It shifts them to the largest
exponent, cuts what is below a fixed number of fraction bits, adds exactly, and cuts the sum to
float32. The block and the bits of each generation were measured on cards: P. Xie et al., *MMA-Sim*,
arXiv 2511.10909; M. Fasi et al., *Numerical Behavior of NVIDIA Tensor Cores*, PeerJ CS 2021; X. Li
et al., *FTTN*, arXiv 2403.00232.

Not modeled: cuDNN's and cuBLAS's choice of algorithm and tiles, flash attention's tiles, and atomic
additions.
"""

import functools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from experiments import KERNELS

Floats = NDArray[np.float32]

# -------------------------------------------------------------------------------------- this CPU
# torch adds an element of a product in one of three orders: LANES, four sums over every fourth
# product, if no operand is transposed; IN_TURN, one sum, if the first is; DOTS, 64 sums over every
# 64th product and then over every eighth, if the second is.
LANES, IN_TURN, DOTS = 4, 1, 64
COLUMNS = 64  # at a time: their sums stay in the nearest cache
WORTH = 1 << 12  # multiplications below which torch takes less time


@njit(cache=True)
def add_strided(x: Floats, b: Floats, sums: Floats) -> None:
    """Add each row of `b`, times its factor, to the next sum, in turn."""
    for k in range(len(x)):
        row, factor, column = sums[k % len(sums)], x[k], b[k]
        for j in range(len(row)):
            row[j] += factor * column[j]


@njit(cache=True)
def add_eight(sums: Floats, row: Floats) -> None:
    """Add eight sums to `row`, the halves first."""
    s0, s1, s2, s3 = sums[0], sums[1], sums[2], sums[3]
    s4, s5, s6, s7 = sums[4], sums[5], sums[6], sums[7]
    for j in range(len(row)):
        even = (s0[j] + s4[j]) + (s2[j] + s6[j])
        odd = (s1[j] + s5[j]) + (s3[j] + s7[j])
        row[j] += even + odd


@njit(cache=True)
def add_lanes(x: Floats, b: Floats, sums: Floats) -> None:
    """Set the first of the sums, which are 0, to (k) times (k, n)."""
    whole = len(x) - len(x) % len(sums)
    add_strided(x[:whole], b[:whole], sums)
    add_strided(x[whole:], b[whole:], sums[:1])
    for lane in range(1, len(sums)):
        sums[0] += sums[lane]


@njit(cache=True)
def add_dots(x: Floats, b: Floats, sums: Floats) -> None:
    """Set the last of 73 sums, which are 0, to (k) times (k, n)."""
    whole = len(x) - len(x) % DOTS
    eights = len(x) - len(x) % 16
    many, few, total = sums[:DOTS], sums[DOTS:-1], sums[-1:]
    add_strided(x[:whole], b[:whole], many)
    add_eight(many.reshape(8, -1), few.ravel())
    add_eight(few, total[0])
    few[:] = 0
    add_strided(x[whole:eights], b[whole:eights], few)
    add_eight(few, total[0])
    add_strided(x[eights:], b[eights:], total)


@njit("void(float32[:, ::1], float32[:, ::1], int64, float32[:, ::1])", cache=True)
def add_in_order(a: Floats, b: Floats, order: int, out: Floats) -> None:
    """Set (m, n) to (m, k) times (k, n), added in one of the orders."""
    for left in range(0, b.shape[1], COLUMNS):
        part = slice(left, left + COLUMNS)
        columns = np.ascontiguousarray(b[:, part])
        sums = np.empty((DOTS + 9, columns.shape[1]), np.float32)
        for i in range(len(a)):
            sums[:] = 0
            if order == DOTS:
                add_dots(a[i], columns, sums)
                out[i, part] = sums[-1]
            else:
                add_lanes(a[i], columns, sums[:order])
                out[i, part] = sums[0]


# ----------------------------------------------------------------------- matrix units of a card
@dataclass(frozen=True)
class MatrixUnit:
    """How the matrix unit of a card adds products of halves."""

    block: int  # products that are added at once
    fraction: int  # bits kept below the largest exponent
    half_sums: bool = (
        False  # whether the accumulator is rounded to fp16 after each block
    )
    slices: int = 1  # parts of the inner dimension whose sums are rounded to fp16 and added in fp16


HOPPER = MatrixUnit(16, 25)
ARITHMETICS: dict[str, MatrixUnit | None] = {
    "cpu": None,
    "volta": MatrixUnit(4, 23),
    "ampere": MatrixUnit(8, 24),  # and Turing and Ada
    "hopper": HOPPER,  # and Blackwell
    "fp16 accumulator": MatrixUnit(16, 25, half_sums=True),
    "split-K": MatrixUnit(16, 25, slices=4),
}


@njit(cache=True, error_model="numpy")
def powers(x: Floats, least: float, zero: float, out: Floats) -> None:
    """Set `out` to 2 to the exponent of each number: at least `least`, as for subnormals."""
    bits, out_bits = x.view(np.uint32), out.view(np.uint32)
    for j in range(len(x)):
        out_bits[j] = bits[j] & np.uint32(0x7F800000)
    for j in range(len(x)):
        out[j] = np.float32(zero) if x[j] == 0 else max(out[j], np.float32(least))


@njit(cache=True, error_model="numpy")
def round_to_half(values: NDArray[np.float64]) -> None:
    """Round to nearest even as fp16 does, and to inf from 65520 on."""
    for j in range(len(values)):
        unit = max(2.0 ** (math.frexp(values[j])[1] - 11), 2.0**-24)
        values[j] = np.rint(values[j] / unit) * unit + 0.0  # +0, not -0
        if abs(values[j]) > 65504:
            values[j] = math.copysign(np.inf, values[j])


@njit(cache=True, error_model="numpy")
def add_block(
    x: Floats,
    x_powers: Floats,
    b: Floats,
    b_powers: Floats,
    fraction: int,
    row: Floats,
    scale: Floats,
    total: NDArray[np.float64],
) -> None:
    """Set `total` to `row` plus (k) times (k, n), each cut `fraction` bits below the largest.

    Args:
        x: (k) numbers.
        x_powers: (k) their `powers`.
        b: (k, n) numbers.
        b_powers: (k, n) their `powers`.
        fraction: Bits that are kept below the largest exponent.
        row: (n) sums so far.
        scale: (n) the powers of `row`; overwritten.
        total: (n) the result.
    """
    for k in range(len(x)):
        power, powers = x_powers[k], b_powers[k]
        for j in range(len(row)):
            scale[j] = max(scale[j], power * powers[j])
    for j in range(len(row)):
        scale[j] = (
            np.float32(2.0**fraction) / scale[j]
        )  # makes an integer of what is kept
        total[j] = np.trunc(row[j] * scale[j])
    for k in range(len(x)):
        factor, column = x[k], b[k]
        for j in range(len(row)):
            total[j] += np.trunc(factor * column[j] * scale[j])
    for j in range(len(row)):
        total[j] /= scale[j]


@njit(cache=True, error_model="numpy")
def add_in_blocks(
    a: Floats, b: Floats, block: int, fraction: int, half: bool, out: Floats
) -> None:
    """Set (m, n) to the product of finite halves (m, k) and (k, n), as a `MatrixUnit` adds it."""
    a_powers, b_powers = np.empty_like(a), np.empty_like(b)
    powers(a.ravel(), 2.0**-14, 0, a_powers.ravel())
    powers(b.ravel(), 2.0**-14, 0, b_powers.ravel())
    # A zero has an exponent, which may be the largest of a block. With a float32 accumulator it is
    # below all others.
    least, zero = (2.0**-14, 2.0 ** (4 - fraction)) if half else (0.0, 2.0**-90)
    scale, total = np.empty(b.shape[1], np.float32), np.empty(b.shape[1], np.float64)
    out[:] = 0
    for i in range(len(a)):
        row = out[i]
        for start in range(0, a.shape[1], block):
            part = slice(start, start + block)
            powers(row, least, zero, scale)
            add_block(
                a[i, part],
                a_powers[i, part],
                b[part],
                b_powers[part],
                fraction,
                row,
                scale,
                total,
            )
            if half:
                round_to_half(total)
            else:  # keep 24 of the 53 bits of a float64 number
                total.view(np.int64)[:] &= ~((np.int64(1) << 29) - 1)
            for j in range(len(row)):  # an accumulator of inf stays
                row[j] = row[j] if abs(row[j]) == np.inf else total[j]


# -------------------------------------------------------------------------------- in torch's place
COMMON = os.environ.items() >= KERNELS.items()  # whose orders of sums are known
unit: MatrixUnit | None = None  # that multiplies halves now; None: this CPU


@contextmanager
def computed_by(arithmetic: str) -> Iterator[None]:
    """Compute every product of halves as one of `ARITHMETICS` does."""
    global unit
    install()
    before, unit = unit, ARITHMETICS[arithmetic]
    try:
        yield
    finally:
        unit = before


@functools.cache
def install() -> Any:
    """Put the functions below in the place of torch's CPU kernels, until the process ends.

    Returns:
        The registration, which ends with its last reference.
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    ours: dict[str, Callable[..., Any]] = {
        "mm": product,
        "addmm": product_and_sum,
        "bmm": products,
        "_slow_conv2d_forward": convolution,
        "_slow_conv2d_backward.output_mask": convolution_backward,
        attention: attend,
        f"{attention}_backward": attend_backward,
    }
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Warning only once for all operators"
        )  # "overridden"
        for name, function in ours.items():
            theirs = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed
            kernel = functools.partial(function, theirs)
            library.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)
    return library


def unit_of(x: Tensor) -> MatrixUnit | None:
    """Return the unit that multiplies `x` now; None: this CPU."""
    return unit if x.dtype is torch.float16 else None


def sums(a: Tensor, b: Tensor, order: int) -> Tensor:
    """Return (m, k) times (k, n) in float32, before it is rounded to 16 bits."""
    if found := unit_of(a):
        return sums_by_unit(found, a.float(), b.float())
    out = torch.empty(len(a), b.shape[1])
    add_in_order(array(a), array(b), order, out.numpy())
    return out


def sums_by_unit(unit: MatrixUnit, a: Tensor, b: Tensor) -> Tensor:
    """Return (m, k) times (k, n) in float32, added by a matrix unit."""
    size = max(unit.block, -(-len(b) // unit.slices))
    total = None
    for x, y in zip(torch.split(a, size, 1), torch.split(b, size), strict=True):
        part = torch.empty(len(a), b.shape[1])
        add_in_blocks(
            array(x), array(y), unit.block, unit.fraction, unit.half_sums, part.numpy()
        )
        total = part if total is None else (total.half() + part.half()).float()
    plain = a @ b  # not finite where an operand is not
    return plain if total is None else torch.where(plain.isfinite(), total, plain)


def array(x: Tensor) -> Floats:
    """Return numbers as a float32 array without gaps."""
    return x.float().contiguous().numpy()


def order_of(a: Tensor, b: Tensor) -> int | None:
    """Return the order of `sums` for 16-bit matrices; None to leave their product to torch."""
    (m, k), n = a.shape, b.shape[1]
    if unit_of(a):
        return LANES  # any: a unit has no order
    if left_to_torch(a) or min(m, k, n) < 2 or m * k * n < WORTH:
        return None
    if b.stride() == (n, 1):
        return {(k, 1): LANES, (1, m): IN_TURN}.get((a.stride(0), a.stride(1)))
    return DOTS if a.stride() == (k, 1) and b.stride() == (1, k) else None


def left_to_torch(x: Tensor) -> bool:
    """Return whether torch itself computes products of `x`."""
    return not unit_of(x) and not (
        COMMON and x.dtype in (torch.float16, torch.bfloat16)
    )


# The functions below take a kernel of torch, for what is left to it, and then that kernel's
# arguments. They return what it returns, hence Any.
Keys = torch.DispatchKeySet


def product(theirs: Any, keys: Keys, a: Tensor, b: Tensor) -> Any:
    """Return (m, k) times (k, n)."""
    order = order_of(a, b)
    return theirs(keys, a, b) if order is None else sums(a, b, order).to(a.dtype)


def product_and_sum(
    theirs: Any, keys: Keys, bias: Tensor, a: Tensor, b: Tensor, **factors: float
) -> Any:
    """Return (m, k) times (k, n) plus a bias per column."""
    order = order_of(a, b)
    plain = bias.shape == b.shape[1:] and bias.is_contiguous() and bias.dtype is a.dtype
    if order in (None, IN_TURN) or not plain or not set(factors.values()) <= {1}:
        return theirs(keys, bias, a, b, **factors)
    return (sums(a, b, order) + bias.float()).to(a.dtype)


def products(theirs: Any, keys: Keys, a: Tensor, b: Tensor) -> Any:
    """Return (batch, m, k) times (batch, k, n)."""
    return batched(a, b).half() if unit_of(a) else theirs(keys, a, b)


def batched(a: Tensor, b: Tensor) -> Tensor:
    """Return (..., m, k) times (..., k, n) in float32, before it is rounded to 16 bits."""
    pairs = zip(a.flatten(0, -3), b.flatten(0, -3), strict=True)
    return torch.stack([sums(x, y, LANES) for x, y in pairs]).view(
        *a.shape[:-1], b.shape[-1]
    )


Pair = tuple[int, int]


def joined(x: Tensor) -> Tensor:
    """Return (batch, rows, places) as (rows, batch * places)."""
    return x.transpose(0, 1).flatten(1)


def by_image(x: Tensor, images: int) -> Tensor:
    """Return (rows, batch * places) as (batch, rows, places)."""
    return x.view(len(x), images, -1).transpose(0, 1).contiguous()


def columns_of(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Return (batch, channels * kernel, places): what each place of a convolution sees."""
    return functional.unfold(x.float(), kernel, 1, padding, stride).to(x.dtype)


def convolution(
    theirs: Any,
    keys: Keys,
    x: Tensor,
    weight: Tensor,
    kernel: Pair,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
) -> Any:
    """Return the convolution of (batch, channels, height, width)."""
    if bias is not None or left_to_torch(x):
        return theirs(keys, x, weight, kernel, bias, stride, padding)
    columns = joined(columns_of(x, kernel, stride, padding))
    total = by_image(sums(weight.flatten(1), columns, LANES), len(x)).to(x.dtype)
    height = (x.shape[2] + 2 * padding[0] - kernel[0]) // stride[0] + 1
    return total.view(len(x), len(weight), height, -1)


def convolution_backward(
    theirs: Any,
    keys: Keys,
    given: Tensor,
    x: Tensor,
    weight: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    mask: Sequence[bool],
) -> Any:
    """Return the gradients of image, weight, and bias, as far as `mask` asks for them."""
    if mask[2] or not mask[1] or left_to_torch(x):
        return theirs(keys, given, x, weight, kernel, stride, padding, mask)
    geometry = kernel, stride, padding
    back = to_image(given, x, weight, geometry) if mask[0] else None
    return back, to_weight(given, columns_of(x, *geometry)).view_as(weight), None


def to_weight(given: Tensor, columns: Tensor) -> Tensor:
    """Return the gradient of the weight, (channels out, channels in * kernel)."""
    given = given.flatten(2)
    if unit_of(columns):
        return sums(joined(given), joined(columns).T, LANES).half()
    total = torch.zeros(given.shape[1], columns.shape[1], dtype=columns.dtype)
    for pixels, column in zip(
        given, columns, strict=True
    ):  # torch rounds after each image
        total = (total.float() + sums(pixels, column.T, DOTS)).to(columns.dtype)
    return total


def to_image(
    given: Tensor, x: Tensor, weight: Tensor, geometry: tuple[Pair, Pair, Pair]
) -> Tensor:
    """Return the gradient of the image."""
    kernel, stride, padding = geometry
    if unit_of(
        x
    ):  # one product: the gradient with gaps, convolved with the weight turned around
        axes = zip(x.shape[2:], kernel, padding, strict=True)
        sides = [side + 2 * pad - size + 1 for side, size, pad in axes]
        wide = given.new_zeros(*given.shape[:2], *sides)
        wide[:, :, :: stride[0], :: stride[1]] = given
        down, across = (
            size - 1 - pad for size, pad in zip(kernel, padding, strict=True)
        )
        wide = functional.pad(wide, (across, across, down, down))
        columns = joined(columns_of(wide, kernel, (1, 1), (0, 0)))
        turned = weight.flip(2, 3).transpose(0, 1).flatten(1)
        return by_image(sums(turned, columns, LANES), len(x)).view_as(x).half()
    total = sums(weight.flatten(1).T, joined(given.flatten(2)), IN_TURN).to(x.dtype)
    size = x.shape[2], x.shape[3]
    return functional.fold(by_image(total, len(x)), size, kernel, 1, padding, stride)


def attend(
    theirs: Any,
    keys: Keys,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    **options: Any,
) -> Any:
    """Return attention (batch, heads, tokens, width) and the log of its softmax's denominator.

    The two products are the unit's. As in flash attention the logits stay float32 and the
    probabilities are rounded to fp16.
    """
    if dropout or set(options.values()) - {None} or not unit_of(q):
        return theirs(keys, q, k, v, dropout, causal, **options)
    logits = logits_of(q, k, causal)
    probabilities = logits.softmax(-1).half()
    return batched(probabilities, v).half(), logits.logsumexp(-1)


def logits_of(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Return the scaled products of queries and keys in float32, -inf for a later key."""
    logits = batched(q, k.mT) / math.sqrt(q.shape[-1])
    later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(later, -math.inf) if causal else logits


def attend_backward(
    theirs: Any,
    keys: Keys,
    given: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    dropout: float,
    causal: bool,
    **options: Any,
) -> Any:
    """Return the gradients of queries, keys, and values."""
    if dropout or set(options.values()) - {None} or not unit_of(q):
        return theirs(keys, given, q, k, v, out, log_sums, dropout, causal, **options)
    probabilities = (logits_of(q, k, causal) - log_sums[..., None]).exp()
    mean = (given.float() * out.float()).sum(-1, keepdim=True)
    to_logits = (probabilities * (batched(given, v.mT) - mean)).half()
    scale = 1 / math.sqrt(q.shape[-1])
    to_q = batched(to_logits, k) * scale
    to_k = batched(to_logits.mT, q) * scale
    return to_q.half(), to_k.half(), batched(probabilities.half().mT, given).half()
