"""The counts of any number of tensors by one Triton kernel, for CUDA.

A tile of BLOCK elements is read into registers once. Its zeros, and its exponents relative to the largest, are counted
in 32 bins; a tile whose elements lie farther apart, or that holds inf, NaN or subnormals, is counted in 256. Triton 3.6
counts by ballots of a warp, one per bit of the bin, and 32 bins are half of the work. The bins that occur are added to
the tensor's row of one table in the device's memory, which stays there until somebody copies it. All is integer
arithmetic: nothing rounds, and no flag of the processor changes a count.

Bytes read per element: its own 4 (float32) or 2 (float16, bfloat16), once.

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
# Triton's own default, which 3.9 warns of; as many registers as let three programs share a multiprocessor:
# that spills up to 96 bytes per thread, see `experiments.compiled_kernels`.
OPTIONS = {"num_warps": 8, "enable_fp_fusion": True, "maxnreg": 80}
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
NEVER = 2**62  # number of a tile that there is not

# What a kernel may read of its module.
COLUMNS = tl.constexpr(binades.BINS + 1)
FIRST_NORMAL = tl.constexpr(binades.FIRST_NORMAL)
INF, NAN, LARGEST = tl.constexpr(binades.INF), tl.constexpr(binades.NAN), tl.constexpr(binades.BINS)
MAGNITUDE, INF_BITS = tl.constexpr(binades.MAGNITUDE), tl.constexpr(binades.INF_BITS)
FAR, ZERO = tl.constexpr(30), tl.constexpr(31)  # bins: as far as this below the largest, or farther; zeros


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
                _count[(tiles,)](on_device, counts, NAMES[dtype], table.shape[1], BLOCK, **OPTIONS)
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
def _bits(address, offsets, there, dtype: tl.constexpr):
    """Load the bits, as float32 has them, of the elements that are there; 0 of the others."""
    if dtype == "float32":
        return tl.load(address.to(tl.pointer_type(tl.int32)) + offsets, mask=there, other=0)
    halves = tl.load(address.to(tl.pointer_type(tl.int16)) + offsets, mask=there, other=0)
    if dtype == "bfloat16":
        return halves.to(tl.int32) << 16
    return halves.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)


@jit()
def _add_small(magnitudes, row):
    """Count the 23 subnormal binades m * 2^-149, at 1 + floor(log2 m), as float32(m) is exact."""
    logarithm = (magnitudes.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    bins = tl.arange(0, 32)
    number = tl.histogram(tl.where(magnitudes >> 23 == 0, tl.maximum(logarithm, 0), 31), 32)
    small = (bins > 0) & (bins < FIRST_NORMAL)
    tl.atomic_add(row + bins, number.to(tl.int64), mask=(number > 0) & small, sem="relaxed")


@jit()
def _add_all(magnitudes, row):
    """Count whatever is not zero."""
    bins = tl.arange(0, 256)
    occurs = tl.histogram(magnitudes >> 23, 256)
    normal = row + (FIRST_NORMAL - 1) + bins  # inf and NaN come after them
    tl.atomic_add(normal, occurs.to(tl.int64), mask=(bins > 0) & (occurs > 0), sem="relaxed")
    if tl.sum(((magnitudes > 0) & (magnitudes >> 23 == 0)).to(tl.int32)) > 0:
        _add_small(magnitudes, row)
    nans = tl.sum((magnitudes > INF_BITS).to(tl.int64))
    if nans > 0:
        tl.atomic_add(row + INF, -nans, sem="relaxed")
        tl.atomic_add(row + NAN, nans, sem="relaxed")


@jit()
def _count(tensors, counts, dtype: tl.constexpr, TENSORS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Add one tile to its tensor's row of `counts`; `tensors` is from `_table`."""
    tile = tl.program_id(0)
    first = tl.load(tensors + tl.arange(0, TENSORS))
    tensor = tl.sum((first <= tile).to(tl.int32)) - 1
    start = (tile - tl.load(tensors + tensor)) * BLOCK
    address = tl.load(tensors + TENSORS + tensor)
    number = tl.minimum(tl.load(tensors + 2 * TENSORS + tensor) - start, BLOCK).to(tl.int32)
    row = counts + tl.load(tensors + 3 * TENSORS + tensor) * COLUMNS

    offsets = tl.arange(0, BLOCK)
    magnitudes = _bits(address, start + offsets, offsets < number, dtype) & MAGNITUDE
    largest = tl.max(magnitudes)
    top, bins = largest >> 23, tl.arange(0, 32)
    occurs = tl.histogram(tl.where(magnitudes == 0, ZERO, tl.minimum(top - (magnitudes >> 23), FAR)), 32)
    zeros = tl.sum(tl.where(bins == ZERO, occurs, 0)) - (BLOCK - number)
    if zeros > 0:
        tl.atomic_add(row, zeros.to(tl.int64), sem="relaxed")
    far = tl.sum(tl.where(bins == FAR, occurs, 0))
    if (far > 0) | (top == 255) | ((top < FAR) & (largest > 0)):  # there may be inf, NaN and subnormals
        _add_all(_bits(address, start + offsets, offsets < number, dtype) & MAGNITUDE, row)
    else:
        normal = row + (FIRST_NORMAL - 1) + top - bins
        tl.atomic_add(normal, occurs.to(tl.int64), mask=(bins < FAR) & (occurs > 0), sem="relaxed")
    tl.atomic_max(row + LARGEST, largest.to(tl.int64), sem="relaxed")
