"""Counts elements per binade of float32, and finds the largest magnitude, in one pass over a
tensor.

float16 and bfloat16 are converted to float32, which is exact. The code works on bits as integers,
because a CPU may be set to read subnormals as zero.

On the CPU the 8 bits of exponent are cut out of each element and counted by `torch.bincount`, of
many small tensors at once, as calls cost more than counting does. On other devices torch's kernels
count one tensor at a time, and nothing waits for the device.
"""

import functools
import itertools
import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampsim.probe.binades import BINS, FIRST_NORMAL, INF, INF_BITS, MAGNITUDE, NAN, ZERO

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_PIECE = 1 << 15  # elements that are searched for subnormals at a time
# Elements that are counted together: 8 bytes each stay in the second-level cache.
_TOGETHER = 1 << 17
# Tensors that are counted together: 256 exponents of each have an index of 15 bits.
_ROWS = 128
# Elements: index and temporaries take about 30 bytes per element.
_DEVICE_CHUNK = 1 << 24

Bits = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


def exponent_counts(values: Tensor) -> Tensor:
    """Count elements per binade, and find the largest magnitude.

    Args:
        values: Tensor of any shape and device, of dtype float32, float16, or bfloat16.

    Returns:
        Tensor of shape ``(281,)`` and dtype int64 on the device of `values`: `Histogram.counts`,
        then the bits of the largest magnitude as float32. `merge_counts` merges two of them.

    Raises:
        TypeError: If the dtype is another one.
    """
    if values.dtype not in DTYPES:
        raise TypeError(
            f"values of {values.dtype}: expected float32, float16, or bfloat16; pass values.float()"
        )
    flat = values.detach().reshape(-1)
    if flat.device.type == "cpu":
        return torch.from_numpy(_on_host([flat])[0])
    if not flat.numel():
        return torch.zeros(BINS + 1, dtype=torch.int64, device=flat.device)
    return functools.reduce(
        merge_counts, map(_on_device, torch.split(flat, _DEVICE_CHUNK))
    )


def merge_counts(a: Tensor, b: Tensor) -> Tensor:
    """Return the counts of two tensors, from the `exponent_counts` of each."""
    total = a + b
    torch.maximum(a[BINS], b[BINS], out=total[BINS])
    return total


def counts_of_each(tensors: list[Tensor]) -> Tensor:
    """Count tensors on one device; int64 of shape ``(tensors, 281)``, see `exponent_counts`."""
    if tensors[0].device.type == "cpu":
        return torch.from_numpy(_on_host(tensors))
    return torch.stack([*map(exponent_counts, tensors)])


class _Scratch(threading.local):
    """Memory that a thread uses again: new memory costs a page fault per 4 kB, more than counting
    what is in it.
    """

    def __init__(self) -> None:
        self.values = torch.empty(_TOGETHER)
        self.index = np.empty(_TOGETHER, np.int16)


_scratch = _Scratch()


def _on_host(tensors: list[Tensor]) -> Ints:
    """Return the counts of tensors, shape (tensors, 281): small ones are counted together, large
    ones in pieces.
    """
    counts = np.zeros((len(tensors), BINS + 1), np.int64)
    rows = list[int]()
    pieces = list[Tensor]()
    elements = 0

    def count() -> None:
        found = _of_few(pieces)
        counts[rows, :BINS] += found[:, :BINS]  # no row is twice among them
        counts[rows, BINS] = np.maximum(counts[rows, BINS], found[:, BINS])

    for row, tensor in enumerate(tensors):
        flat = tensor.detach().flatten()
        size = tensor.numel()
        for start in range(0, size, _TOGETHER):
            piece = flat if size <= _TOGETHER else flat[start : start + _TOGETHER]
            if pieces and (
                elements + piece.numel() > _TOGETHER or len(pieces) == _ROWS
            ):
                count()
                rows = []
                pieces = []
                elements = 0
            rows.append(row)
            pieces.append(piece)
            elements += piece.numel()
    if pieces:
        count()
    return counts


def _of_few(flat: list[Tensor]) -> Ints:
    """Return the counts of at most `_ROWS` flat tensors that are not empty, of `_TOGETHER` elements
    in all.
    """
    # An element's index is, in 16 bits, its tensor's row times 256 plus its exponent field:
    #
    #     bit   15   14 ... 8   7 ... 0
    #           0      row      exponent
    #
    # So one bincount counts the 256 exponents of all `_ROWS` tensors.
    sizes = [tensor.numel() for tensor in flat]
    *starts, size = itertools.accumulate(sizes, initial=0)
    bits = torch.cat(flat, out=_scratch.values[:size]).view(torch.int32).numpy()
    index = np.right_shift(
        bits, 23, out=_scratch.index[:size], dtype=np.int32, casting="unsafe"
    )
    index &= 0xFF
    index |= np.repeat(np.arange(len(flat), dtype=np.int16) << 8, sizes)
    occurs = (
        torch.bincount(torch.from_numpy(index), minlength=len(flat) << 8)
        .view(-1, 256)
        .numpy()
    )
    # Signed, the largest is the largest positive number; unsigned, the largest negative one.
    negative = (
        np.maximum.reduceat(bits.view(np.uint32), starts).astype(np.int64) - 2**31
    )
    return _counts(
        bits,
        np.array(starts),
        occurs,
        np.maximum(np.maximum.reduceat(bits, starts), negative),
    )


def _counts(bits: Bits, starts: Ints, occurs: Ints, largest: Ints | int) -> Ints:
    """Return the counts, shape (tensors, 281), from how often each exponent occurs, and the largest
    magnitudes' bits.

    The tensors lie in `bits` one behind the other, each from its start, none empty.
    """
    counts = np.zeros((len(starts), BINS + 1), np.int64)
    counts[:, ZERO] = occurs[:, 0]
    counts[:, FIRST_NORMAL : INF + 1] = occurs[:, 1:]
    counts[:, BINS] = largest
    small = int(occurs[:, 0].sum())
    if small and small + np.count_nonzero(bits) > bits.size:  # subnormals, or -0.0
        where = _between(bits, 1, (1 << 23) - 1)
        _move(
            counts,
            starts,
            where,
            ZERO,
            _small_index(torch.from_numpy(bits[where] & MAGNITUDE)).numpy(),
        )
    if occurs[:, 255].any():
        _move(counts, starts, _between(bits, INF_BITS + 1, MAGNITUDE), INF, NAN)
    return counts


def _between(bits: Bits, low: int, high: int) -> Ints:
    """Return the places of the magnitudes from `low` to `high`, both included."""
    places = [np.empty(0, np.int64)]
    for start in range(0, len(bits), _PIECE):
        magnitudes = bits[start : start + _PIECE] & MAGNITUDE
        places.append(
            start + np.flatnonzero((magnitudes >= low) & (magnitudes <= high))
        )
    return np.concatenate(places)


def _move(
    counts: Ints, starts: Ints, where: Ints, source: int, target: int | Bits
) -> None:
    """Take the elements at `where` from one column of the counts to others."""
    rows = np.searchsorted(starts, where, side="right") - 1
    counts[:, source] -= np.bincount(rows, minlength=len(counts))
    counts += np.bincount(rows * (BINS + 1) + target, minlength=counts.size).reshape(
        counts.shape
    )


def _small_index(magnitudes: Tensor) -> Tensor:
    """Return the index of subnormals m * 2^-149, 1 + floor(log2 m), and of zeros, from bits m;
    float32(m) is exact.
    """
    return ((magnitudes.float().view(torch.int32) >> 23) - 126).clamp_(min=ZERO)


def _on_device(values: Tensor) -> Tensor:
    """Count on the device without waiting; see `_on_host`."""
    magnitudes = values.float().view(torch.int32) & MAGNITUDE
    field = magnitudes >> 23
    normal = field + (FIRST_NORMAL - 1) + (magnitudes > INF_BITS)
    index = torch.where(field > 0, normal, _small_index(magnitudes)).long()
    counts = torch.zeros(BINS, dtype=torch.int64, device=values.device)
    counts.scatter_add_(0, index, torch.ones_like(index))
    return torch.cat([counts, magnitudes.amax(0, keepdim=True)])
