"""Norm, non-finite check, divisor and next scale in one read, unscaling in one read and write, by Triton for CUDA.

`check` launches one kernel, however many gradients there are, and waits for nothing. Each program reads tiles of BLOCK
elements into registers: of each its largest element and its sum of squares, scaled by a power of two such that it
neither overflows nor underflows. The program that ends last adds up what all have found, in float64 and in one order.
In a tile nothing is float64 but one product, as consumer GPUs compute it at 1/64 of the speed. The number of programs
depends on the GPU, and with it the last bit of a float64 sum: two kinds of GPU agree on the float32 norm but where
that sum lies within some 2^-50 of the middle between two float32 numbers.

Bytes read per element: its own 4 (float32) or 2 (float16, bfloat16), once. Beside them a tile of 4096 elements reads 24
to find its elements: 0.006 per element. Which elements are a tile's depends on sizes alone and is sent to the device
once per model; where the gradients lie is 16 bytes per tensor.

`multiply_and_flag` reads and writes once, and looks at the products: inf and NaN stay what they are when they are
multiplied, so that one look finds what was not finite before and what no longer is.

Their speed is not yet measured: they are used wherever they run, unless AMPSIM_TRITON=0 is set.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ampsim import _triton
from ampsim._triton import NewAddressesError, is_dense, jit, runs, tl
from ampsim.core.machine import Rule
from ampsim.torch.dynamo import leave_alone
from ampsim.torch.gradients.collect import Numbers, numbers

Sent = tuple[Tensor, Any]  # a table, and the event after which it is on its device; None where it need not be sent

BLOCK = 4096  # elements per tile, 16 per thread: rounding errs by less than (16 + 10) / 2 * 2^-24 in the norm
OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}  # the second is Triton's own default, which 3.9 warns of
MULTIPLY_OPTIONS = {**OPTIONS, "maxnreg": 64}  # so that four programs run at once on a multiprocessor
PROGRAMS, OLDER = 6, 4  # of `check` per multiprocessor: as many as its registers let run at once; below capability 9.0
PARTS = 1024  # programs of `check` at most; the last one reads what all have found
SLOT = 4  # numbers from one result to the next: 16 bytes, as Triton compiles anew for an address that is no multiple
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Checked(NamedTuple):
    """The result of one read of all gradients; each shape (), float32, on their device."""

    found_inf: Tensor  # 1.0 if any g / scale is inf or NaN in float32, or the bound is no norm; else 0.0
    following: tuple[Tensor, Tensor] | None  # scale and growth tracker (int32) after an update by this flag alone
    places: tuple[Numbers, Numbers]  # the gradients' elements, and where they lay
    found: Tensor  # all in one; of these a tensor is made when it is asked for:

    @property
    def norm(self) -> Tensor:  # 2-norm of g / scale; inf if it exceeds float32, as of finite gradients it may
        return self.found[0]

    @property
    def divisor(self) -> Tensor:  # g / divisor is unscaled and clipped
        return self.found[2 * SLOT]

    @property
    def largest(self) -> Tensor:  # max |g|, still scaled; NaN if any is NaN
        return self.found[3 * SLOT]


Update = tuple[Tensor, Tensor, Rule]
"""The scale and growth tracker that an update would change, shape (), float32 and int32, on the gradients' device, and
the rule it would change them by, with the growth test ">="."""


def available(device: torch.device) -> bool:
    """Tell whether the kernels run on `device`."""
    return runs(norm_and_flag, device)


def takes(grads: list[Tensor]) -> bool:
    """Tell whether `norm_and_flag` can read gradients of one device and dtype. Subclasses may have no memory."""
    return grads[0].dtype in DTYPES and {*map(type, grads)} == {Tensor} and available(grads[0].device)


def norm_and_flag(grads: list[Tensor], scale: Tensor | None = None) -> Checked:
    """Do what `check` does of gradients that `takes` takes; those with gaps are copied first.

    Raises:
        ValueError: no gradients.
    """
    if not grads:
        raise ValueError("grads=[]: expected at least one tensor, for it tells the device; of none the norm is 0")
    return check([grad if is_dense(grad) else grad.contiguous() for grad in grads], scale)


def check(
    grads: Sequence[Tensor],
    scale: Tensor | None = None,
    max_norm: float | Tensor | None = None,
    update: Update | None = None,
) -> Checked:
    """Return norm, flag and divisor of gradients without gaps, of one device and dtype that is in `DTYPES`.

    The norm is right for any finite g, from subnormal to float32's largest. `scale` has shape (), float32; None is 1.
    `max_norm` is what to clip to: a number of at least 0, a tensor like `scale`, whose NaN or negative number sets the
    flag, or None. One launch, which waits for nothing;
    the gradients may be freed behind it. In the capture of a CUDA graph they must lie where they lay in a call before
    it: NewAddressesError otherwise.
    """
    device = grads[0].device
    places = addresses_of(grads)
    with torch.cuda.device_of(grads[0]):  # Triton launches on the current one
        tiles, table = tiles_on(device, places[0]), table_on(device, *places)
        number = tiles.size(0)
        programs = max(1, min(number, PARTS, _at_once(device)))
        partials = torch.empty(2 * programs, dtype=torch.float64, device=device)
        done = torch.zeros(1, dtype=torch.int32, device=device)
        found = torch.empty(5 * SLOT, dtype=torch.float32, device=device)
        counted = torch.empty((), dtype=torch.int32, device=device) if update else None
        bound = "none" if max_norm is None else "tensor" if isinstance(max_norm, Tensor) else "number"
        _check[(programs,)](
            tiles, number, table, partials, done, scale, 0.0 if max_norm is None else max_norm, found,
            *_state(update), counted, getattr(tl, DTYPES[grads[0].dtype]), bound, PARTS, BLOCK, SLOT,
            *_constants(update), **OPTIONS
        )  # fmt: skip
    return Checked(found[SLOT], None if counted is None else (found[4 * SLOT], counted), places, found)


def addresses_of(tensors: Sequence[Tensor]) -> tuple[Numbers, Numbers]:
    """Return the elements of each tensor, and where they lie."""
    return numbers(Tensor.numel, tensors), numbers(Tensor.data_ptr, tensors)


def _state(update: Update | None) -> tuple[Tensor | None, Tensor | None, int]:
    if update is None:
        return None, None, 0
    scale, tracker, rule = update
    return scale, tracker, min(rule.growth_interval, 2**31)


def _constants(update: Update | None) -> tuple[float | None, ...]:
    if update is None:
        return (None,) * 4
    *_, rule = update
    return rule.growth_factor, rule.backoff_factor, rule.min_scale, rule.max_scale


@functools.cache
def _at_once(device: torch.device) -> int:
    """Return how many programs of `check` a device runs at once."""
    if device.type != "cuda":
        return 2
    gpu = torch.cuda.get_device_properties(device)
    return int(gpu.multi_processor_count * (PROGRAMS if gpu.major >= 9 else OLDER))


def multiply_and_flag(grads: list[Tensor], factor: Tensor, found: Tensor) -> None:
    """Multiply dense gradients that `takes` takes in place; set `found` to 1 if any product is not finite in its dtype.

    Each is a product of two float32 numbers, rounded to the gradient's dtype. `factor` and `found` have shape (),
    float32, on the gradients' device. What `check` says of a capture holds here.
    """
    device, (sizes, places) = grads[0].device, addresses_of(grads)
    with torch.cuda.device_of(grads[0]):
        tiles, table = tiles_on(device, sizes), table_on(device, sizes, places)
        if len(tiles):
            dtype = getattr(tl, DTYPES[grads[0].dtype])
            _multiply[(len(tiles),)](tiles, table, factor, found, dtype, BLOCK, **MULTIPLY_OPTIONS)


_captured: set[Tensor] = set()  # tables that a CUDA graph reads whenever it is replayed: kept for good


def table_on(device: torch.device, *columns: Numbers) -> Tensor:
    """Return columns of one number per tensor as a table, int64, on a device; made once for equal numbers."""
    return arrived(_table(device, *columns))


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


@functools.lru_cache(maxsize=64)  # of numbers: keeps no tensor alive; 8 bytes per tensor
def _table(device: torch.device, *columns: Numbers) -> Sent:
    return send(np.frombuffer(b"".join(columns), np.int64).reshape(len(columns), -1).T.copy(), device)


@functools.lru_cache(maxsize=8)  # each 1/2000 of the size of large gradients
def _tiles(device: torch.device, sizes: Numbers) -> Sent:
    return send(tiles_of(np.frombuffer(sizes, np.int64)), device)


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


def tiles_of(sizes: "Sequence[int] | np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.int32]]":
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
def place(tiles, tile, table, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803 - Triton's convention
    """Return the row of a tile's tensor, where in it the tile starts, and how many elements it has from there on."""
    row = table + WIDTH * tl.load(tiles + 2 * tile)
    start = tl.load(tiles + 2 * tile + 1).to(tl.int64) * BLOCK
    return row, start, tl.load(row) - start


@jit()
def read(pointer, left, BLOCK: tl.constexpr, WHOLE: tl.constexpr):  # noqa: N803
    """Read a tile as float32. One that is WHOLE, and promised to be aligned, is read 16 bytes at once."""
    offsets = tl.arange(0, BLOCK)
    values = tl.load(pointer + offsets) if WHOLE else tl.load(pointer + offsets, mask=offsets < left, other=0.0)
    return values.to(tl.float32)


@jit(do_not_specialize=["number", "max_norm", "interval"])
def _check(
    tiles, number, table, partials, done, scale, max_norm, found, current, tracker, interval, counted,
    dtype: tl.constexpr, BOUND: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, SLOT: tl.constexpr,  # noqa: N803
    GROWTH: tl.constexpr, BACKOFF: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Read all tiles; the last program to end writes norm, found_inf, divisor, largest, and the scale after."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    total, highest = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float32)
    tile = program.to(tl.int64)
    while tile < number:
        row, start, left = place(tiles, tile, table, 2, BLOCK)
        address = tl.load(row + 1)
        pointer = address.to(tl.pointer_type(dtype)) + start
        if (left >= BLOCK) & (address % 16 == 0):
            peak, squares = peak_and_squares(read(tl.multiple_of(pointer, 16), left, BLOCK, WHOLE=True))
        else:
            peak, squares = peak_and_squares(read(pointer, left, BLOCK, WHOLE=False))
        total += squares.to(tl.float64) * unscale_squares(peak)
        highest = tl.maximum(highest, peak)
        tile += programs
    tl.store(partials + 2 * program, total)
    tl.store(partials + 2 * program + 1, highest.to(tl.float64))
    tl.debug_barrier()
    if tl.atomic_add(done, 1, sem="acq_rel") == programs - 1:  # all others have written
        index = tl.arange(0, PARTS)  # in this order, whichever was last: the sum repeats
        parts = tl.load(partials + 2 * index, mask=index < programs, other=0.0, volatile=True)
        peaks = tl.load(partials + 2 * index + 1, mask=index < programs, other=0.0, volatile=True)
        is_finite = _finish(tl.sum(parts), tl.max(peaks).to(tl.float32), scale, max_norm, found, BOUND, SLOT)
        if current is not None:
            _update_scale(is_finite, current, tracker, interval, found + 4 * SLOT, counted, GROWTH, BACKOFF, LOW, HIGH)


@jit()
def _finish(total, largest, scale, max_norm, found, BOUND: tl.constexpr, SLOT: tl.constexpr):  # noqa: N803
    s = tl.full((), 1.0, tl.float32) if scale is None else tl.load(scale)
    norm = (tl.sqrt(total) / s.to(tl.float64)).to(tl.float32)
    # The norm is NaN if an element is, and may leave float32 where none does.
    is_finite = (total == total) & (tl.abs(tl.div_rn(largest, s)) < float("inf"))
    divisor = s
    if BOUND != "none":
        bound = max_norm
        if BOUND == "tensor":
            bound = tl.load(max_norm)
            is_finite = is_finite & (bound >= 0.0)
        limit = norm + 1e-6
        # torch's clip: min(1, max_norm / (norm + 1e-6)), by way of a reciprocal as its operator goes
        clip = tl.minimum(tl.div_rn(1.0, limit) * bound, 1.0)  # 1 if both are inf: the smaller of NaN and 1
        divisor = tl.div_rn(s, clip)
    tl.store(found, norm)
    tl.store(found + SLOT, tl.where(is_finite, 0.0, 1.0))
    tl.store(found + 2 * SLOT, divisor)
    tl.store(found + 3 * SLOT, tl.where(total == total, largest, float("nan")))
    return is_finite


@jit()
def _update_scale(
    is_finite, current, tracker, interval, following, counted,
    GROWTH: tl.constexpr, BACKOFF: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write the scale and the count that an update by this flag alone makes; the machine's, as `DeviceVersion.next`."""
    s, clean = tl.load(current), tl.minimum(tl.load(tracker).to(tl.int64), interval - 1) + 1
    grown = (s.to(tl.float64) * GROWTH).to(tl.float32)
    if HIGH is None:  # as torch: no scale leaves float32
        grown = tl.where(grown < float("inf"), grown, s)
    scale = tl.where(is_finite, tl.where(clean == interval, grown, s), (s.to(tl.float64) * BACKOFF).to(tl.float32))
    if LOW is not None:
        scale = tl.maximum(scale, LOW)
    if HIGH is not None:
        scale = tl.minimum(scale, HIGH)
    tl.store(following, scale)
    tl.store(counted, tl.where(is_finite & (clean < interval), clean, 0).to(tl.int32))


@jit()
def _flag(products, found):
    if tl.sum((tl.abs(products.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1) > 0:
        tl.store(found, 1.0)  # every program that stores stores this


@jit()
def _multiply(tiles, table, factor, found, dtype: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Multiply one tile in place."""
    row, start, left = place(tiles, tl.program_id(0).to(tl.int64), table, 2, BLOCK)
    address, by = tl.load(row + 1), tl.load(factor)
    pointer, offsets = address.to(tl.pointer_type(dtype)) + start, tl.arange(0, BLOCK)
    if (left >= BLOCK) & (address % 16 == 0):
        aligned = tl.multiple_of(pointer, 16)
        products = (tl.load(aligned + offsets).to(tl.float32) * by).to(dtype)
        tl.store(aligned + offsets, products)
        _flag(products, found)
    else:
        there = offsets < left
        products = (tl.load(pointer + offsets, mask=there, other=0.0).to(tl.float32) * by).to(dtype)
        tl.store(pointer + offsets, products, mask=there)
        _flag(tl.where(there, products, 0.0), found)  # 0 * inf is NaN


leave_alone(sys.modules[__name__], _triton, launch=True)  # loaded where first needed, after the package was marked
