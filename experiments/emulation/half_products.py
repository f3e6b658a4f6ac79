"""Matrix products of halves as a device computes them: this CPU, or the matrix units of an NVIDIA card.

A float32 number holds the product of two halves exactly, so devices differ only in how they add.

torch's CPU kernels add float32 numbers and round each sum to nearest. Which operand is transposed decides the order of
the additions. With `experiments.KERNELS` the same additions are made here for many elements at a time, which gives
torch's bits in less time.

A matrix unit adds a block of products and its accumulator at once. It shifts them to the largest exponent, cuts what
is below a fixed number of fraction bits, adds exactly, and cuts the sum to float32. The block and the bits of each
generation were measured on cards: P. Xie et al., *MMA-Sim*, arXiv 2511.10909; M. Fasi et al., *Numerical Behavior of
NVIDIA Tensor Cores*, PeerJ CS 2021; X. Li et al., *FTTN*, arXiv 2403.00232.

Not modeled: cuDNN's and cuBLAS's choice of algorithm and tiles, flash attention's tiles, and atomic additions.
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
COLUMNS = 64  # at a time, so that their sums stay in the nearest cache
WORTH = 1 << 12  # multiplications below which torch takes less time


@njit("void(float32[::1], float32[:, ::1], int64, int64, float32[:, ::1])", cache=True)
def add_strided(x: Floats, b: Floats, begin: int, end: int, sums: Floats) -> None:
    """Add products begin + l, begin + l + len(sums), and so on, one after the other, to sum l."""
    stride, width = sums.shape
    fours = begin + (end - begin) // (4 * stride) * (4 * stride)
    for start in range(begin, fours, 4 * stride):  # four at once: a sum stays in a register
        for lane in range(stride):
            k0, row = start + lane, sums[lane]
            k1, k2, k3 = k0 + stride, k0 + 2 * stride, k0 + 3 * stride
            x0, x1, x2, x3 = x[k0], x[k1], x[k2], x[k3]
            b0, b1, b2, b3 = b[k0], b[k1], b[k2], b[k3]
            for j in range(width):
                row[j] = (((row[j] + x0 * b0[j]) + x1 * b1[j]) + x2 * b2[j]) + x3 * b3[j]
    for k in range(fours, end):
        row, factor, column = sums[(k - fours) % stride], x[k], b[k]
        for j in range(width):
            row[j] += factor * column[j]


@njit("void(float32[:, :], float32[::1])", cache=True)
def add_eight(sums: Floats, row: Floats) -> None:
    """Add eight sums to `row`, the halves first."""
    s0, s1, s2, s3 = sums[0], sums[1], sums[2], sums[3]
    s4, s5, s6, s7 = sums[4], sums[5], sums[6], sums[7]
    for j in range(len(row)):
        even = (s0[j] + s4[j]) + (s2[j] + s6[j])
        row[j] += even + ((s1[j] + s5[j]) + (s3[j] + s7[j]))


@njit("void(float32[:, ::1], float32[:, ::1], int64, float32[:, ::1])", cache=True)
def add_in_order(a: Floats, b: Floats, order: int, out: Floats) -> None:
    """Set (m, n) to (m, k) times (k, n), added in one of the orders."""
    (m, k), n = a.shape, b.shape[1]
    whole, eights = k - k % order, k - k % 16
    for left in range(0, n, COLUMNS):
        columns = np.ascontiguousarray(b[:, left : left + COLUMNS])
        sums = np.empty((DOTS + 9, columns.shape[1]), np.float32)
        total = sums[:1] if order < DOTS else sums[DOTS + 8 :]
        for i in range(m):
            sums[:] = 0
            add_strided(a[i], columns, 0, whole, sums[:order])
            if order < DOTS:
                add_strided(a[i], columns, whole, k, total)
                for lane in range(1, order):
                    total[0] += sums[lane]
            else:
                for first in range(8):
                    add_eight(sums[first:DOTS:8], sums[DOTS + first])
                add_eight(sums[DOTS : DOTS + 8], total[0])
                if eights > whole:
                    sums[:8] = 0
                    add_strided(a[i], columns, whole, eights, sums[:8])
                    add_eight(sums[:8], total[0])
                add_strided(a[i], columns, eights, k, total)
            out[i, left : left + COLUMNS] = total[0]


# ----------------------------------------------------------------------- matrix units of a card
@dataclass(frozen=True)
class MatrixUnit:
    """How the matrix unit of a card adds products of halves."""

    block: int  # products that are added at once
    fraction: int  # bits kept below the largest exponent
    half_sums: bool = False  # whether the accumulator is rounded to fp16 after each block
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
    x: Floats, x_powers: Floats, b: Floats, b_powers: Floats, fraction: int, row: Floats,
    scale: Floats, total: NDArray[np.float64],
) -> None:  # fmt: skip
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
        scale[j] = np.float32(2.0**fraction) / scale[j]  # makes an integer of what is kept
        total[j] = np.trunc(row[j] * scale[j])
    for k in range(len(x)):
        factor, column = x[k], b[k]
        for j in range(len(row)):
            total[j] += np.trunc(factor * column[j] * scale[j])
    for j in range(len(row)):
        total[j] /= scale[j]


@njit(cache=True, error_model="numpy")
def add_in_blocks(a: Floats, b: Floats, block: int, fraction: int, half: bool, out: Floats) -> None:
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
                a[i, part], a_powers[i, part], b[part], b_powers[part], fraction, row, scale, total
            )
            if half:
                round_to_half(total)
            else:  # keep 24 of the 53 bits of a float64 number
                total.view(np.int64)[:] &= ~((np.int64(1) << 29) - 1)
            for j in range(len(row)):  # an accumulator of inf stays
                row[j] = row[j] if abs(row[j]) == np.inf else total[j]


# -------------------------------------------------------------------------------- in torch's place
COMMON = os.environ.items() >= KERNELS.items()  # whose orders of sums are known
HALVES = (torch.float16, torch.bfloat16)
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
    """Put the functions below in the place of torch's CPU kernels, for as long as the process lives.

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
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # "overridden"
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
        add_in_blocks(array(x), array(y), unit.block, unit.fraction, unit.half_sums, part.numpy())
        total = part if total is None else (total.half() + part.half()).float()
    plain = a @ b  # not finite where an operand is not
    return plain if total is None else torch.where(plain.isfinite(), total, plain)


def array(x: Tensor) -> Floats:
    """Return numbers as a float32 array without gaps."""
    return x.float().contiguous().numpy()


def order_of(a: Tensor, b: Tensor) -> int | None:
    """Return the order of `sums` for 16-bit matrices; None to leave their product to torch."""
    (m, k), n = a.shape, b.shape[1]
    if a.dtype not in HALVES:
        return None
    if unit_of(a):
        return LANES  # any: a unit has no order
    if not COMMON or min(m, k, n) < 2 or m * k * n < WORTH:
        return None
    first, second = a.stride(), b.stride()
    if second == (n, 1):
        return {(k, 1): LANES, (1, m): IN_TURN}.get((first[0], first[1]))
    return DOTS if first == (k, 1) and second == (1, k) else None


def product(theirs: Any, keys: torch.DispatchKeySet, a: Tensor, b: Tensor) -> Tensor:
    """Return (m, k) times (k, n)."""
    order = order_of(a, b)
    if order is None:
        out: Tensor = theirs(keys, a, b)
        return out
    return sums(a, b, order).to(a.dtype)


def product_and_sum(
    theirs: Any, keys: torch.DispatchKeySet, bias: Tensor, a: Tensor, b: Tensor, **factors: float
) -> Tensor:
    """Return (m, k) times (k, n) plus a bias per column."""
    order = order_of(a, b)
    plain = bias.shape == b.shape[1:] and bias.is_contiguous() and set(factors.values()) <= {1}
    if order in (None, IN_TURN) or bias.dtype is not a.dtype or not plain:
        out: Tensor = theirs(keys, bias, a, b, **factors)
        return out
    return (sums(a, b, order) + bias.float()).to(a.dtype)


def products(theirs: Any, keys: torch.DispatchKeySet, a: Tensor, b: Tensor) -> Tensor:
    """Return (batch, m, k) times (batch, k, n)."""
    if not unit_of(a):
        out: Tensor = theirs(keys, a, b)
        return out
    return batched(a, b).half()


def batched(a: Tensor, b: Tensor) -> Tensor:
    """Return (..., m, k) times (..., k, n) in float32, before it is rounded to 16 bits."""
    pairs = zip(a.flatten(0, -3), b.flatten(0, -3), strict=True)
    return torch.stack([sums(x, y, LANES) for x, y in pairs]).view(*a.shape[:-1], b.shape[-1])


Pair = tuple[int, int]


def left_to_torch(x: Tensor) -> bool:
    """Return whether torch computes a convolution of `x`."""
    return not unit_of(x) and not (COMMON and x.dtype in HALVES)


def joined(x: Tensor) -> Tensor:
    """Return (batch, rows, places) as (rows, batch * places)."""
    return x.transpose(0, 1).flatten(1)


def by_image(x: Tensor, images: int) -> Tensor:
    """Return (rows, batch * places) as (batch, rows, places)."""
    return x.view(len(x), images, -1).transpose(0, 1).contiguous()


def convolution(
    theirs: Any, keys: torch.DispatchKeySet, x: Tensor, weight: Tensor, kernel: Pair,
    bias: Tensor | None, stride: Pair, padding: Pair,
) -> Tensor:  # fmt: skip
    """Return the convolution of (batch, channels, height, width)."""
    if bias is not None or left_to_torch(x):
        out: Tensor = theirs(keys, x, weight, kernel, bias, stride, padding)
        return out
    columns = functional.unfold(x.float(), kernel, 1, padding, stride)
    total = sums(weight.flatten(1), joined(columns).to(x.dtype), LANES)
    high = (x.shape[2] + 2 * padding[0] - kernel[0]) // stride[0] + 1
    return by_image(total, len(x)).view(len(x), len(weight), high, -1).to(x.dtype)


def convolution_backward(
    theirs: Any, keys: torch.DispatchKeySet, given: Tensor, x: Tensor, weight: Tensor, kernel: Pair,
    stride: Pair, padding: Pair, mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return the gradients of what `convolution` was given."""
    if mask[2] or not mask[1] or left_to_torch(x):
        gradients: tuple[Tensor | None, ...] = theirs(
            keys, given, x, weight, kernel, stride, padding, mask
        )
        return gradients  # type: ignore[return-value]
    columns = functional.unfold(x.float(), kernel, 1, padding, stride).to(x.dtype)
    if unit_of(x):
        total = sums(joined(given.flatten(2)), joined(columns).T, LANES)
    else:  # torch rounds the sum after each image
        total = torch.zeros_like(weight).flatten(1)
        for pixels, column in zip(given.flatten(2), columns, strict=True):
            total = (total.float() + sums(pixels, column.T, DOTS)).to(x.dtype)
    to_weight = total.view_as(weight).to(x.dtype)
    if not mask[0]:
        return None, to_weight, None
    if unit_of(x):
        return transposed(given, x, weight, (kernel, stride, padding)), to_weight, None
    total = sums(weight.flatten(1).T, joined(given.flatten(2)), IN_TURN).to(x.dtype)
    size, back = (x.shape[2], x.shape[3]), by_image(total, len(x))
    return functional.fold(back, size, kernel, 1, padding, stride), to_weight, None


def transposed(
    given: Tensor, x: Tensor, weight: Tensor, geometry: tuple[Pair, Pair, Pair]
) -> Tensor:
    """Return the gradient of `x` as one product: a convolution of the gradient with its gaps."""
    kernel, stride, padding = geometry
    axes = zip(x.shape[2:], kernel, padding, strict=True)
    sides = [side + 2 * pad - size + 1 for side, size, pad in axes]
    wide = given.new_zeros(*given.shape[:2], *sides)
    wide[:, :, :: stride[0], :: stride[1]] = given
    down, across = (size - 1 - pad for size, pad in zip(kernel, padding, strict=True))
    wide = functional.pad(wide.float(), (across, across, down, down))
    columns = joined(functional.unfold(wide, kernel)).half()
    total = sums(weight.flip(2, 3).transpose(0, 1).flatten(1), columns, LANES)
    return by_image(total, len(x)).view_as(x).half()


def attend(
    theirs: Any, keys: torch.DispatchKeySet, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0,
    causal: bool = False, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return attention (batch, heads, tokens, width) and the log of its softmax's denominator.

    The two products are the unit's. As in flash attention the logits stay float32 and the
    probabilities are rounded to fp16.
    """
    if not unit_of(q) or dropout or any(value is not None for value in options.values()):
        out: tuple[Tensor, Tensor] = theirs(keys, q, k, v, dropout, causal, **options)
        return out
    logits = logits_of(q, k, causal)
    probabilities = logits.softmax(-1).half()
    return batched(probabilities, v).half(), logits.logsumexp(-1)


def logits_of(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Return the scaled products of queries and keys in float32, -inf for a later key."""
    logits = batched(q, k.mT) / math.sqrt(q.shape[-1])
    later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(later, -math.inf) if causal else logits


def attend_backward(
    theirs: Any, keys: torch.DispatchKeySet, given: Tensor, q: Tensor, k: Tensor, v: Tensor,
    out: Tensor, log_sums: Tensor, dropout: float, causal: bool, **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of queries, keys, and values."""
    if not unit_of(q) or dropout or any(value is not None for value in options.values()):
        gradients: tuple[Tensor, Tensor, Tensor] = theirs(
            keys, given, q, k, v, out, log_sums, dropout, causal, **options
        )
        return gradients
    probabilities = (logits_of(q, k, causal) - log_sums[..., None]).exp()
    mean = (given.float() * out.float()).sum(-1, keepdim=True)
    to_logits = (probabilities * (batched(given, v.mT) - mean)).half()
    scale = 1 / math.sqrt(q.shape[-1])
    to_q, to_k = batched(to_logits, k) * scale, batched(to_logits.mT, q) * scale
    return to_q.half(), to_k.half(), batched(probabilities.half().mT, given).half()
