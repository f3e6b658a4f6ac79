"""What `products` has numba compile: products of matrices of 16-bit numbers, in the order in which torch adds.

A number of 16 bits comes as its bits, is widened to float32, and a sum is rounded to 16 bits once. There are three
orders in which torch adds up an element, by which operand is transposed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]
Places = tuple[int, int, int, int]  # the first and the end of the products, and of the columns

LANES = 4  # sums over every fourth product, added at the end: where neither operand is transposed
IN_TURN = 1  # one product after the other: where the first is
DOTS = 0  # 64 sums over every 64th product, then in halves: where the second is
BLOCK = 64  # columns at a time, so that their sums stay in the nearest cache


def _as(kind: Any, source: Any, convert: Callable[[Any, Any], Any]) -> Any:
    """Return a function for numba's code, of a `source` number, that LLVM's builder makes a `kind` number of."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return convert(builder, given[0])

    return intrinsic(lambda context, x: (kind(source), code))


HALF, FLOAT = ir.HalfType(), ir.FloatType()
half_to_float = _as(types.float32, types.uint16, lambda do, x: do.fpext(do.bitcast(x, HALF), FLOAT))
float_to_half = _as(
    types.uint16, types.float32, lambda do, x: do.bitcast(do.fptrunc(x, HALF), ir.IntType(16))
)
float_of_bits = _as(types.float32, types.uint32, lambda do, x: do.bitcast(x, FLOAT))
bits_of_float = _as(types.uint32, types.float32, lambda do, x: do.bitcast(x, ir.IntType(32)))
BITS = types.CPointer(types.uint16)  # type: ignore[no-untyped-call]
bits_at = _as(BITS, types.int64, lambda do, x: do.inttoptr(x, ir.IntType(16).as_pointer()))


@njit(cache=True)
def widened(x: Bits, brain: bool) -> Floats:
    """Return numbers as float32; `brain`: they are bfloat16, and not float16."""
    out = np.empty(x.shape, np.float32)
    flat, bits = out.reshape(-1), x.reshape(-1)
    if brain:
        for i in range(len(bits)):
            flat[i] = float_of_bits(np.uint32(bits[i]) << np.uint32(16))
    else:
        for i in range(len(bits)):
            flat[i] = half_to_float(bits[i])
    return out


@njit("float32[:, ::1](int64, int64, int64, boolean)", cache=True)
def matrix(address: int, rows: int, columns: int, brain: bool) -> Floats:
    """Return the matrix of numbers that lies at an address, `widened`."""
    return widened(carray(bits_at(address), (rows, columns)), brain)


@njit(cache=True)
def brain_bits(x: float) -> int:
    """Return a float32 number as bfloat16: the nearest, and of two the even one."""
    bits = bits_of_float(x)
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(0x7FC0) if x != x else np.uint16((bits + up) >> np.uint32(16))  # type: ignore[return-value]


@njit(cache=True)
def brain_rounded(x: float) -> float:
    """Return the bfloat16 number that is nearest to a float32 number."""
    return float_of_bits(np.uint32(brain_bits(x)) << np.uint32(16))  # type: ignore[no-any-return]


@njit(cache=True)
def half_rounded(x: float) -> float:
    """Return the float16 number that is nearest to a float32 number."""
    return half_to_float(float_to_half(x))  # type: ignore[no-any-return]


@njit(cache=True)
def rounded(x: Floats, out: Bits, brain: bool) -> None:
    """Round float32 numbers to 16 bits."""
    flat, bits = x.reshape(-1), out.reshape(-1)
    if brain:
        for i in range(len(bits)):
            bits[i] = brain_bits(flat[i])
    else:
        for i in range(len(bits)):
            bits[i] = float_to_half(flat[i])


@njit("void(float32[:, :], float32[:, ::1], float32[:, :, ::1])", cache=True)
def add(a: Floats, b: Floats, sums: Floats) -> None:
    """Add (m, k) times (k, n) to (lanes, m, n), which is 0; the first lane ends with the sum of all."""
    lanes, m, n = sums.shape
    k = a.shape[1]
    whole = k - k % (4 * lanes)
    for i in range(
        0, m, 2
    ):  # two rows at a time: what b has is read once for both; an odd last one is both
        last = min(i + 1, m - 1)
        for lane in range(lanes):
            row, below = sums[lane, i], sums[lane, last]
            for start in range(
                lane, whole, 4 * lanes
            ):  # four at a time, so that a sum stays in its register
                one, two, three = start + lanes, start + 2 * lanes, start + 3 * lanes
                x0, x1, x2, x3 = a[i, start], a[i, one], a[i, two], a[i, three]
                y0, y1, y2, y3 = a[last, start], a[last, one], a[last, two], a[last, three]
                b0, b1, b2, b3 = b[start], b[one], b[two], b[three]
                for j in range(n):
                    z0, z1, z2, z3 = b0[j], b1[j], b2[j], b3[j]
                    above = (((row[j] + x0 * z0) + x1 * z1) + x2 * z2) + x3 * z3
                    below[j] = (((below[j] + y0 * z0) + y1 * z1) + y2 * z2) + y3 * z3
                    row[j] = above
    for i in range(m):
        for place in range(whole, k):
            row = sums[place % lanes if place < k - k % lanes else 0, i]
            for j in range(n):
                row[j] += a[i, place] * b[place, j]
        for lane in range(1, lanes):
            for j in range(n):
                sums[0, i, j] += sums[lane, i, j]


@njit(cache=True)
def strided(x: Floats, b: Floats, place: Places, stride: int, sums: Floats) -> None:
    """Set sum l of each column to that of products begin + l, begin + l + stride and so on, below `end`."""
    begin, end, left, right = place
    sums[:stride] = 0
    fours = begin + (end - begin) // (4 * stride) * (4 * stride)
    for start in range(begin, fours, 4 * stride):
        add_four(x, b, (start, left, right), stride, sums)
    for start in range(fours, end, stride):
        add_one(x, b, (start, left, right), stride, sums)


@njit(cache=True)
def add_four(x: Floats, b: Floats, place: tuple[int, int, int], stride: int, sums: Floats) -> None:
    """Add the next four products to each sum, at once so that it stays in its register."""
    start, left, right = place
    for lane in range(stride):
        row, k = sums[lane], start + lane
        x0, x1, x2, x3 = x[k], x[k + stride], x[k + 2 * stride], x[k + 3 * stride]
        b0, b1 = b[k, left:right], b[k + stride, left:right]
        b2, b3 = b[k + 2 * stride, left:right], b[k + 3 * stride, left:right]
        for j in range(right - left):
            row[j] = (((row[j] + x0 * b0[j]) + x1 * b1[j]) + x2 * b2[j]) + x3 * b3[j]


@njit(cache=True)
def add_one(x: Floats, b: Floats, place: tuple[int, int, int], stride: int, sums: Floats) -> None:
    """Add the next product to each sum."""
    start, left, right = place
    for lane in range(stride):
        row, factor, other = sums[lane], x[start + lane], b[start + lane, left:right]
        for j in range(right - left):
            row[j] += factor * other[j]


@njit(cache=True)
def eighths(sums: Floats, width: int) -> None:
    """Add every eighth of 64 sums of each column, the halves first, so that eight sums remain."""
    for i in range(8):
        s0, s1, s2, s3 = sums[i], sums[i + 8], sums[i + 16], sums[i + 24]
        s4, s5, s6, s7 = sums[i + 32], sums[i + 40], sums[i + 48], sums[i + 56]
        for j in range(width):
            s0[j] = ((s0[j] + s4[j]) + (s2[j] + s6[j])) + ((s1[j] + s5[j]) + (s3[j] + s7[j]))


@njit(cache=True)
def eighths_of_64(x: Floats, b: Floats, left: int, right: int, sums: Floats) -> None:
    """Do what `strided` and `eighths` do for the first 64 products, if there are no more, in one go."""
    for i in range(8):
        s = sums[i]
        x0, x1, x2, x3 = x[i], x[i + 8], x[i + 16], x[i + 24]
        x4, x5, x6, x7 = x[i + 32], x[i + 40], x[i + 48], x[i + 56]
        b0, b1, b2, b3 = (
            b[i, left:right],
            b[i + 8, left:right],
            b[i + 16, left:right],
            b[i + 24, left:right],
        )
        b4, b5, b6, b7 = (
            b[i + 32, left:right],
            b[i + 40, left:right],
            b[i + 48, left:right],
            b[i + 56, left:right],
        )
        for j in range(right - left):
            even = (x0 * b0[j] + x4 * b4[j]) + (x2 * b2[j] + x6 * b6[j])
            s[j] = even + ((x1 * b1[j] + x5 * b5[j]) + (x3 * b3[j] + x7 * b7[j]))


@njit(cache=True)
def eight(sums: Floats, row: Floats) -> None:
    """Add eight sums of each column, the halves first, to `row`; a sum of nothing but -0 is 0."""
    s0, s1, s2, s3, s4, s5, s6, s7 = (
        sums[0],
        sums[1],
        sums[2],
        sums[3],
        sums[4],
        sums[5],
        sums[6],
        sums[7],
    )
    for j in range(len(row)):
        row[j] += (
            ((s0[j] + s4[j]) + (s2[j] + s6[j]))
            + ((s1[j] + s5[j]) + (s3[j] + s7[j]))
            + np.float32(0)
        )


@njit("void(float32[:, ::1], float32[:, ::1], float32[:, ::1])", cache=True)
def dots(a: Floats, b: Floats, out: Floats) -> None:
    """Set (m, n) to (m, k) times (k, n): 64 sums as far as they go, then 8, then one product after the other."""
    k, n = b.shape
    main, tail = k - k % 64, k - k % 16
    sums = np.empty((64, BLOCK), np.float32)
    out[:] = 0
    for left in range(0, n, BLOCK):
        right = min(left + BLOCK, n)
        for i in range(a.shape[0]):
            x, row = a[i], out[i, left:right]
            if main == 64:
                eighths_of_64(x, b, left, right, sums)
            elif main:
                strided(x, b, (0, main, left, right), 64, sums)
                eighths(sums, right - left)
            if main:
                eight(sums, row)
            if tail > main:
                strided(x, b, (main, tail, left, right), 8, sums)
                eight(sums, row)
            for place in range(tail, k):
                factor, other = x[place], b[place, left:right]
                for j in range(len(row)):
                    row[j] += factor * other[j]


@njit("void(float32[:, ::1], int64, int64, boolean)", cache=True)
def settle(x: Floats, bias: int, out: int, brain: bool) -> None:
    """Add the numbers at the address `bias`, unless it is 0, to each row, and round to 16 bits at the address `out`."""
    if bias:
        row = widened(carray(bits_at(bias), x.shape[1]), brain)
        for i in range(len(x)):
            for j in range(len(row)):
                x[i, j] += row[j]
    rounded(x, carray(bits_at(out), x.shape), brain)


def product(
    a: int, b: int, bias: int, out: int, shape: tuple[int, int, int], order: int, brain: bool
) -> None:
    """Set (m, n) to a product in one of the orders, plus `bias` unless it is 0; a transposed operand comes back.

    Each comes as the address of its bits: to make an array of a tensor takes as long as a small product. The parts are
    compiled each for itself: as one they are compiled anew in all that calls them, for 20 s.
    """
    m, k, n = shape
    sums = np.zeros((max(order, 1), m, n), np.float32)
    if order == DOTS:
        dots(matrix(a, m, k, brain), np.ascontiguousarray(matrix(b, n, k, brain).T), sums[0])
    else:
        x = matrix(a, k, m, brain).T if order == IN_TURN else matrix(a, m, k, brain)
        add(x, matrix(b, k, n, brain), sums)
    settle(sums[0], bias, out, brain)
