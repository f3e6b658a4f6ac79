"""Norm, non-finite check and largest gradient in one read, as Triton kernels for CUDA.

`norm_and_flag` launches two kernels, however many gradients there are, and waits for nothing. The first reads a
tile of BLOCK elements into registers, and leaves its largest element and its sum of squares, scaled by a power of
two such that it neither overflows nor underflows; the second adds them up in float64. In the first nothing is
float64, which consumer GPUs compute at 1/64 of the speed: three float32 operations per element.

Bytes read per element: its own 4 (float32) or 2 (float16, bfloat16), once. Beside them a tile of 8192 elements
reads 16 for its row of the table, writes 8 and reads them again: 0.004 per element.

Their speed is not yet measured: they are used wherever they run, unless AMPSIM_TRITON=0 is set.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ampsim import _triton
from ampsim._triton import is_dense, jit, runs, tl
from ampsim.torch.dynamo import leave_alone

Numbers = tuple[int, ...]
Copied = tuple[Tensor, torch.cuda.Event | None]  # a table, and the event of its copy to the device

BLOCK = 8192  # elements per tile, 16 per thread: rounding errs by less than (16 + 10) / 2 * 2^-24 in the norm
OPTIONS = {"num_warps": 16, "enable_fp_fusion": True}  # the second is Triton's own default, which 3.9 warns of
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class NewAddressesError(RuntimeError):
    """The table of gradients cannot be copied to the device while a CUDA graph is captured."""


class Read(NamedTuple):
    """The result of one read of all gradients; each shape (), float32, on their device."""

    norm: Tensor  # 2-norm of factor * g; inf if it exceeds float32, as of finite gradients it may
    found_inf: Tensor  # 1.0 if any factor * g is inf or NaN in float32, else 0.0
    largest: Tensor  # max |g|, without the factor; NaN if any is NaN


def available(device: torch.device) -> bool:
    """Tell whether the kernels run on `device`."""
    return runs(norm_and_flag, device)


def takes(grads: list[Tensor]) -> bool:
    """Tell whether `norm_and_flag` can read gradients of one device and dtype. Subclasses may have no memory."""
    return grads[0].dtype in DTYPES and all(type(g) is Tensor for g in grads) and available(grads[0].device)


def norm_and_flag(grads: list[Tensor], factor: Tensor | None = None) -> Read:
    """Return the 2-norm, whether any is not finite, and the largest of gradients that `takes` takes, in one read.

    The norm is that of ``factor * g``, right for any finite g, from subnormal to float32's largest; `factor` has
    shape (), float32, on the gradients' device. In the capture of a CUDA graph the gradients must lie where they
    lay in a call before it: NewAddressesError otherwise.
    """
    if not grads:
        raise ValueError("grads=[]: expected at least one tensor, for it tells the device; of none the norm is 0")
    dense = [grad if is_dense(grad) else grad.contiguous() for grad in grads]  # a copy lives until it has been read
    device, dtype = grads[0].device, grads[0].dtype
    with torch.cuda.device_of(grads[0]):  # Triton launches on the current one
        addresses, sizes = tuple(map(Tensor.data_ptr, dense)), tuple(map(Tensor.numel, dense))
        table = ready(_table(device, dtype.itemsize, addresses, sizes))
        partials = torch.empty(table.shape, dtype=torch.float32, device=device)
        found = torch.empty(3, dtype=torch.float32, device=device)
        if len(table):
            _read[(len(table),)](table, partials, getattr(tl, DTYPES[dtype]), BLOCK, **OPTIONS)
        _combine[(1,)](partials, len(table), factor, found, 4096, **OPTIONS)
    return Read(*found.unbind())


_captured: set[Tensor] = set()  # tables that a CUDA graph reads whenever it is replayed: kept for good


def ready(made: Copied) -> Tensor:
    """Return a table, behind whose copy the current stream comes."""
    table, event = made
    if table.device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():  # torch.cuda.graph waited for the copy
            _captured.add(table)
        elif event is not None:  # another stream may have made it
            stream = torch.cuda.current_stream(table.device)
            stream.wait_event(event)
            table.record_stream(stream)
    return table


def copied(rows: "np.ndarray[Any, np.dtype[np.int64]]", device: torch.device, tensors: int) -> Copied:
    """Return a table of some tensors on `device` and an event for the copy, which is from pinned memory: no wait."""
    table = torch.from_numpy(rows)
    if device.type != "cuda":  # Triton's interpreter
        return table, None
    if torch.cuda.is_current_stream_capturing():
        raise NewAddressesError(
            f"{tensors} gradients at new addresses in the capture of a CUDA graph: expected those of a call before "
            "it; warm up with zero_grad(set_to_none=False), or set AMPSIM_TRITON=0"
        )
    table = table.pin_memory().to(device, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return table, event


@functools.lru_cache(maxsize=8)  # of numbers: keeps no gradient alive; each 1/1000 of the size of large gradients
def _table(device: torch.device, itemsize: int, addresses: Numbers, sizes: Numbers) -> Copied:
    return copied(tiles(itemsize, addresses, sizes), device, len(sizes))


def tiles(itemsize: int, addresses: Numbers, sizes: Numbers) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return address and number of elements, at most BLOCK, of each tile of some tensors; (tiles, 2), int64."""
    size = np.array(sizes, dtype=np.int64)
    number = -(-size // BLOCK)
    of = np.repeat(np.arange(len(size)), number)  # the tile's tensor
    start = (np.arange(len(of)) - (np.cumsum(number) - number)[of]) * BLOCK
    address = np.array(addresses, dtype=np.int64)[of] + start * itemsize
    return np.stack([address, np.minimum(size[of] - start, BLOCK)], axis=1)


@jit()
def _exponent(peak):
    """Return the biased exponent e of the scale: peak * 2^(e - 127) lies in [1, 4), or below for subnormals."""
    return tl.maximum(254 - (peak.to(tl.int32, bitcast=True) >> 23), 1)


@jit()
def peak_and_squares(values):
    """Return max |x| and the sum of squares of x * 2^(e - 127), see `_exponent`, float32."""
    peak = tl.max(tl.abs(values))  # whether it is NaN if one is differs between devices: the sum always is
    scaled = values * (_exponent(peak) << 23).to(tl.float32, bitcast=True)
    return peak, tl.sum(scaled * scaled)


@jit()
def unscale_squares(peak):
    """Return what `peak_and_squares` has left the squares to be multiplied by, float64: 2^(-2 (e - 127))."""
    unscale = (1023 - 2 * (_exponent(peak) - 127)).to(tl.int64) << 52  # no division in float64
    return unscale.to(tl.float64, bitcast=True)


@jit()
def _read(table, partials, dtype: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803 - Triton's convention
    """Read one tile: partials[tile] = (max |g|, sum of (g * scale)^2)."""
    tile = tl.program_id(0)
    address, number = tl.load(table + 2 * tile), tl.load(table + 2 * tile + 1)
    offsets = tl.arange(0, BLOCK)
    pointer = address.to(tl.pointer_type(dtype))
    if (number == BLOCK) & (address % 16 == 0):  # a promise that lets a thread load 16 bytes at once
        values = tl.load(tl.multiple_of(pointer, 16) + offsets)
        peak, squares = peak_and_squares(values.to(tl.float32))
    else:
        values = tl.load(pointer + offsets, mask=offsets < number, other=0.0)
        peak, squares = peak_and_squares(values.to(tl.float32))
    tl.store(partials + 2 * tile, peak)
    tl.store(partials + 2 * tile + 1, squares)


@jit(do_not_specialize=["number"])
def _combine(partials, number, factor, found, BLOCK: tl.constexpr):  # noqa: N803
    """Write norm, found_inf and largest from the partials of all tiles."""
    highest, total = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float64)
    for start in range(0, number, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        peak = tl.load(partials + 2 * tile, mask=tile < number, other=0.0)
        squares = tl.load(partials + 2 * tile + 1, mask=tile < number, other=0.0)
        total += squares.to(tl.float64) * unscale_squares(peak)
        highest = tl.maximum(highest, peak)
    norm = tl.sqrt(tl.sum(total))
    largest = tl.where(norm == norm, tl.max(highest), float("nan"))
    unscaled = largest
    if factor is not None:
        norm *= tl.load(factor).to(tl.float64)
        unscaled *= tl.load(factor)
    tl.store(found, norm.to(tl.float32))
    tl.store(found + 1, tl.where(tl.abs(unscaled) < float("inf"), 0.0, 1.0))
    tl.store(found + 2, largest)


leave_alone(sys.modules[__name__], _triton)  # loaded where it is first needed, after the package was marked
