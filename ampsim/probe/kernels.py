"""The counts of any number of tensors by one Triton kernel, for CUDA.

A tile of BLOCK elements is read into registers once, and its 31 highest exponents are counted first. Each element
becomes a word with one bit set, in the column of its exponent. A thread adds its words as adders of wires do: by a
bitwise exclusive or and a majority for all columns at once, into one word per bit of the counts. Then the threads'
counts are added. What lies farther below the tile's largest element is counted in the same way, from the highest
exponent that is left, and subnormals at last, as the normal numbers that their integers are; zeros are what remains.
The exponents that occur are added to the tensor's row of one table in the device's memory, which stays there until
somebody copies it. All is integer arithmetic: nothing rounds, and no flag of the processor changes a count.

Bytes read per element: its own 4 (float32) or 2 (float16, bfloat16), once, 16 bytes at a time where they are aligned.
Beside them a tile reads 8 bytes per tensor, to find its own.
As Triton 3.6 compiles it, a warp executes about 500 instructions per 1,024 elements (bfloat16: 550), and 110 more where
there are zeros or exponents lie 31 apart, for each time that it looks again.

The speed is not yet measured: the kernel is used wherever it runs, unless AMPSIM_TRITON=0 is set.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ampsim._triton import is_dense, jit, runs, tl
from ampsim.probe import binades

BLOCK = 8192  # elements per tile
# The second is Triton's own default, which 3.9 warns of; four programs share a multiprocessor's registers, and no
# register is spilled: see `experiments.compiled_kernels`.
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True, "maxnreg": 128}
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
NEVER = 2**62  # number of a tile that there is not

# What a kernel may read of its module.
COLUMNS = tl.constexpr(binades.BINS + 1)
FIRST_NORMAL = tl.constexpr(binades.FIRST_NORMAL)
INF, NAN, LARGEST = tl.constexpr(binades.INF), tl.constexpr(binades.NAN), tl.constexpr(binades.BINS)
MAGNITUDE, INF_BITS = tl.constexpr(binades.MAGNITUDE), tl.constexpr(binades.INF_BITS)
SMALLEST_NORMAL = tl.constexpr(1 << 23)
HALVINGS = tl.constexpr((BLOCK // (32 * OPTIONS["num_warps"])).bit_length() - 1)  # until a thread has one word


def available(device: torch.device) -> bool:
    """Tell whether the kernel runs on `device`."""
    return runs(exponent_counts, device)


def exponent_counts(tensors: Sequence[Tensor]) -> Tensor:
    """Return `counting.exponent_counts` of each, in one launch for each dtype among them; waits for nothing.

    Args:
        tensors: at least one, of one device: float32, float16 or bfloat16, of any shape.

    Returns:
        int64, shape (len(tensors), 281), on their device.
    """
    dense = [tensor if is_dense(tensor) else tensor.contiguous() for tensor in tensors]
    device = dense[0].device
    with torch.cuda.device_of(dense[0]):  # Triton launches on the current one
        counts = torch.zeros((len(dense), binades.BINS + 1), dtype=torch.int64, device=device)
        for dtype in {tensor.dtype: None for tensor in dense}:
            mine = [row for row, tensor in enumerate(dense) if tensor.dtype is dtype and tensor.numel()]
            if mine:
                table, tiles = _table([dense[row] for row in mine], mine)
                on_device = table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
                _count[(tiles,)](on_device, counts, getattr(tl, NAMES[dtype]), table.shape[1], BLOCK, **OPTIONS)
        if device.type == "cuda":
            for tensor in dense:  # they may be freed on the stream that they were made on
                tensor.record_stream(torch.cuda.current_stream(device))
    return counts


def _table(tensors: Sequence[Tensor], rows: Sequence[int]) -> tuple[Tensor, int]:
    """Return what the kernel is told of each tensor, int64: first tile, address, elements, row; and how many tiles.

    There are as many columns as the next power of two; those that are too many begin at no tile.
    """
    sizes = np.array([tensor.numel() for tensor in tensors], np.int64)
    tiles = -(-sizes // BLOCK)
    table = np.full((4, 1 << (len(tensors) - 1).bit_length()), NEVER, np.int64)
    table[:, : len(tensors)] = np.cumsum(tiles) - tiles, [tensor.data_ptr() for tensor in tensors], sizes, rows
    return torch.from_numpy(table), int(tiles.sum())


@jit()
def _magnitudes(address, number, dtype: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803 - Triton's convention
    """Load a tile, and return the bits that its magnitudes have as float32; 0 behind its last element."""
    offsets = tl.arange(0, BLOCK)
    halves: tl.constexpr = dtype == tl.bfloat16  # of float32: moved, not converted
    pointer = address.to(tl.pointer_type(tl.int16 if halves else dtype))
    if (number == BLOCK) & (address % 16 == 0):  # a promise that lets a thread load 16 bytes at once
        values = tl.load(tl.multiple_of(pointer, 16) + offsets)
    else:
        values = tl.load(pointer + offsets, mask=offsets < number, other=0)
    bits = values.to(tl.int32) << 16 if halves else values.to(tl.float32).to(tl.int32, bitcast=True)
    return bits & MAGNITUDE


@jit()
def _add_halves(planes, adjacent: tl.constexpr):
    """Add the halves of a vector of words, column by column; plane k has bit k of each column's count.

    A thread holds both addends where it loaded them: as neighbours or, if not `adjacent`, from afar.
    """
    half: tl.constexpr = planes[0].shape[0] // 2
    carry = tl.zeros([half], tl.int32)
    sums = ()
    for plane in tl.static_range(len(planes)):
        if adjacent:
            a, b = tl.split(tl.reshape(planes[plane], [half, 2]))
        else:
            a, b = tl.split(tl.permute(tl.reshape(planes[plane], [2, half]), [1, 0]))
        sums = sums + (a ^ b ^ carry,)  # type: ignore[assignment]  # noqa: RUF005 - Triton takes no star
        carry = (a & b) | (carry & (a | b))
    return sums + (carry,)  # noqa: RUF005


@jit()
def _columns(words, adjacent: tl.constexpr):
    """Return how many words have each bit: of bit k in the low half of number k, of bit k + 16 in the high half."""
    planes = (words,)
    for halving in tl.static_range(HALVINGS):
        planes = _add_halves(planes, halving >= HALVINGS - adjacent)
    bits = tl.arange(0, 16)[:, None]
    fields = tl.zeros([16, planes[0].shape[0]], tl.int32)  # bytes, of bits k, k + 8, k + 16, k + 24: each row twice
    for plane in tl.static_range(len(planes)):
        fields += ((planes[plane][None, :] >> (bits & 7)) & 0x01010101) << plane
    return tl.sum((fields >> (bits & 8)) & 0x00FF00FF, 1)


@jit()
def _add_above(magnitudes, base, row, dtype: tl.constexpr):
    """Count exponents base + 1 to base + 31, which none exceeds, at `row` + exponent; return how many there are."""
    places = tl.maximum(magnitudes - (base << 23), 0) >> 23  # 0 of what lies below
    adjacent: tl.constexpr = 2 if dtype.primitive_bitwidth == 32 else 3  # halvings of what 16 bytes hold
    counts = _columns(1 << places, adjacent)
    bits = tl.arange(0, 16)
    low, high = tl.where(bits > 0, counts & 0xFFFF, 0), counts >> 16
    tl.atomic_add(row + base + bits, low.to(tl.int64), mask=low > 0, sem="relaxed")
    tl.atomic_add(row + base + 16 + bits, high.to(tl.int64), mask=high > 0, sem="relaxed")
    return tl.sum(low + high)


@jit()
def _count(tensors, counts, dtype: tl.constexpr, TENSORS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Add one tile to its tensor's row of `counts`; `tensors` is from `_table`."""
    tile = tl.program_id(0)
    first = tl.load(tensors + tl.arange(0, TENSORS))
    tensor = tl.sum((first <= tile).to(tl.int32)) - 1
    start = (tile - tl.load(tensors + tensor)) * BLOCK
    address = tl.load(tensors + TENSORS + tensor) + start * (dtype.primitive_bitwidth // 8)
    left = tl.minimum(tl.load(tensors + 2 * TENSORS + tensor) - start, BLOCK).to(tl.int32)
    row = counts + tl.load(tensors + 3 * TENSORS + tensor) * COLUMNS

    magnitudes = _magnitudes(address, left, dtype, BLOCK)
    largest = tl.max(magnitudes)
    tl.atomic_max(row + LARGEST, largest.to(tl.int64), sem="relaxed")
    if largest > INF_BITS:
        nans = tl.sum((magnitudes > INF_BITS).to(tl.int64))
        tl.atomic_add(row + INF, -nans, sem="relaxed")  # counted with inf below
        tl.atomic_add(row + NAN, nans, sem="relaxed")
    zeroth = row + (FIRST_NORMAL - 1)  # exponent 0, if it were counted there
    while (left > 0) & (largest > 0):
        base = tl.maximum((largest >> 23) - 31, 0)
        left -= _add_above(magnitudes, base, zeroth, dtype)
        if left > 0:
            magnitudes = tl.where(magnitudes < (base + 1) << 23, magnitudes, 0)
            largest = tl.max(magnitudes)
            while (largest > 0) & (largest < SMALLEST_NORMAL):  # m * 2^-149 becomes m, once; an `if` were no jump
                magnitudes = magnitudes.to(tl.float32).to(tl.int32, bitcast=True)
                largest = largest.to(tl.float32).to(tl.int32, bitcast=True)
                zeroth = row - 126  # 1.0, of exponent 127, counts as 2^-149, in column 1
    if left > 0:
        tl.atomic_add(row, left.to(tl.int64), sem="relaxed")
