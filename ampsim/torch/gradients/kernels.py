"""Norm, non-finite check and largest gradient in one read, and the unscaling in one read and write, by Triton for CUDA.

`norm_and_flag` launches two kernels, however many gradients there are, and waits for nothing. The first reads a
tile of BLOCK elements into registers, and leaves its largest element and its sum of squares, scaled by a power of
two such that it neither overflows nor underflows; the second adds them up in float64. In the first nothing is
float64, which consumer GPUs compute at 1/64 of the speed: three float32 operations per element.

Bytes read per element: its own 4 (float32) or 2 (float16, bfloat16), once. Beside them a tile of 8192 elements
reads 24 to find its elements, writes 8 and reads them again: 0.005 per element. Which elements are a tile's depends on
sizes alone and is sent to the device once per model; where the gradients lie is 16 bytes per tensor.

`multiply_and_flag` reads and writes once, and looks at the products: inf and NaN stay what they are when they are
multiplied, so that one look finds what was not finite before and what no longer is.

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
from ampsim._triton import NewAddressesError, is_dense, jit, runs, tl
from ampsim.torch.dynamo import leave_alone

Numbers = tuple[int, ...]
Sent = tuple[Tensor, Any]  # a table, and the event after which it is on its device; None where it need not be sent

BLOCK = 8192  # elements per tile, 16 per thread: rounding errs by less than (16 + 10) / 2 * 2^-24 in the norm
OPTIONS = {"num_warps": 16, "enable_fp_fusion": True}  # the second is Triton's own default, which 3.9 warns of
MULTIPLY_OPTIONS = {**OPTIONS, "maxnreg": 64}  # so that two programs run at once on a multiprocessor
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


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
        tensors, tiles = _tables_on(dense)
        partials = torch.empty((len(tiles), 2), dtype=torch.float32, device=device)
        found = torch.empty(3, dtype=torch.float32, device=device)
        if len(tiles):
            _read[(len(tiles),)](tensors, tiles, partials, getattr(tl, DTYPES[dtype]), BLOCK, **OPTIONS)
        _combine[(1,)](partials, len(tiles), factor, found, 4096, **OPTIONS)
    return Read(*found.unbind())


def multiply_and_flag(grads: list[Tensor], factor: Tensor, found: Tensor) -> None:
    """Multiply dense gradients that `takes` takes in place; set `found` to 1 if any product is not finite in its dtype.

    Each is a product of two float32 numbers, rounded to the gradient's dtype. `factor` and `found` have shape (),
    float32, on the gradients' device. What `norm_and_flag` says of a capture holds here.
    """
    with torch.cuda.device_of(grads[0]):
        tensors, tiles = _tables_on(grads)
        if len(tiles):
            dtype = getattr(tl, DTYPES[grads[0].dtype])
            _multiply[(len(tiles),)](tensors, tiles, factor, found, dtype, BLOCK, **MULTIPLY_OPTIONS)


_captured: set[Tensor] = set()  # tables that a CUDA graph reads whenever it is replayed: kept for good


def _tables_on(grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return what a kernel is told: address and elements of each tensor, and tensor and number of each tile in it."""
    device, sizes = grads[0].device, tuple(map(Tensor.numel, grads))
    return arrived(_tensors(device, tuple(map(Tensor.data_ptr, grads)), sizes)), tiles_on(device, sizes)


def tiles_on(device: torch.device, sizes: Numbers) -> Tensor:
    """Return on a device what `tiles_of` returns, made once per model."""
    return arrived(_tiles(device, sizes))


def arrived(sent: Sent) -> Tensor:
    """Return a table that was sent to a device; the current stream comes behind its copy."""
    table, copied = sent
    if table.device.type == "cuda":
        stream = torch.cuda.current_stream(table.device)
        if torch.cuda.is_current_stream_capturing():  # torch.cuda.graph waited for the copy
            _captured.add(table)
        else:  # another stream may have made it
            stream.wait_event(copied)
            table.record_stream(stream)
    return table


@functools.lru_cache(maxsize=8)  # of numbers: keeps no gradient alive
def _tensors(device: torch.device, addresses: Numbers, sizes: Numbers) -> Sent:
    return send(np.array([addresses, sizes], dtype=np.int64).T.copy(), device)


@functools.lru_cache(maxsize=8)  # each 1/4000 of the size of large gradients
def _tiles(device: torch.device, sizes: Numbers) -> Sent:
    return send(tiles_of(sizes), device)


def send(rows: "np.ndarray[Any, Any]", device: torch.device) -> Sent:
    """Return a table on `device` and an event for its copy. Waits for nothing: the copy is from pinned memory."""
    table = torch.from_numpy(rows)
    if device.type != "cuda":  # Triton's interpreter
        return table, None
    if torch.cuda.is_current_stream_capturing():
        raise NewAddressesError(
            "gradients at new addresses in the capture of a CUDA graph: expected those of a call before "
            "it; warm up with zero_grad(set_to_none=False), or set AMPSIM_TRITON=0"
        )
    table = table.pin_memory().to(device, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(device))
    return table, copied


def tiles_of(sizes: Numbers) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Return the tensor and the number in it of each tile of at most BLOCK elements; shape (tiles, 2), int32."""
    number = -(-np.array(sizes, dtype=np.int64) // BLOCK)
    of = np.repeat(np.arange(len(number)), number)  # the tile's tensor
    return np.stack([of, np.arange(len(of)) - (np.cumsum(number) - number)[of]], axis=1).astype(np.int32)


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
def _place(tensors, tiles, dtype: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803 - Triton's convention
    """Return the address of this program's tile and how many elements it has.

    No pointer: of what an inlined function returns, `multiple_of` would mark the number as a multiple of 16 too.
    """
    tensor, tile = tl.load(tiles + 2 * tl.program_id(0)), tl.load(tiles + 2 * tl.program_id(0) + 1)
    start = tile.to(tl.int64) * BLOCK
    address, number = tl.load(tensors + 2 * tensor), tl.load(tensors + 2 * tensor + 1)
    return address + start * (dtype.primitive_bitwidth // 8), tl.minimum(number - start, BLOCK)


@jit()
def _read(tensors, tiles, partials, dtype: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Read one tile: partials[tile] = (max |g|, sum of (g * scale)^2)."""
    address, number = _place(tensors, tiles, dtype, BLOCK)
    offsets = tl.arange(0, BLOCK)
    pointer = address.to(tl.pointer_type(dtype))
    if (number == BLOCK) & (address % 16 == 0):  # a promise that lets a thread load 16 bytes at once
        values = tl.load(tl.multiple_of(pointer, 16) + offsets)
        peak, squares = peak_and_squares(values.to(tl.float32))
    else:
        values = tl.load(pointer + offsets, mask=offsets < number, other=0.0)
        peak, squares = peak_and_squares(values.to(tl.float32))
    partial = partials + 2 * tl.program_id(0)
    tl.store(partial, peak)
    tl.store(partial + 1, squares)


@jit()
def _flag(products, found):
    if tl.sum((tl.abs(products.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1) > 0:
        tl.store(found, 1.0)  # every program that stores stores this


@jit()
def _multiply(tensors, tiles, factor, found, dtype: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Multiply one tile in place."""
    address, number = _place(tensors, tiles, dtype, BLOCK)
    offsets, by = tl.arange(0, BLOCK), tl.load(factor)
    pointer = address.to(tl.pointer_type(dtype))
    if (number == BLOCK) & (address % 16 == 0):
        aligned = tl.multiple_of(pointer, 16)
        products = (tl.load(aligned + offsets).to(tl.float32) * by).to(dtype)
        tl.store(aligned + offsets, products)
        _flag(products, found)
    else:
        there = offsets < number
        products = (tl.load(pointer + offsets, mask=there, other=0.0).to(tl.float32) * by).to(dtype)
        tl.store(pointer + offsets, products, mask=there)
        _flag(tl.where(there, products, 0.0), found)  # 0 * inf is NaN


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


leave_alone(sys.modules[__name__], _triton, launch=True)  # loaded where first needed, after the package was marked
