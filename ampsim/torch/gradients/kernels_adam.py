"""Adam and AdamW in eight words per element: what runs on the GPU, for `ampsim.torch.gradients.adam` to launch.

Rounding: `adam` does what torch's CUDA kernel does, operation by operation: float32, fused multiply-adds where torch
writes them and where its compiler makes them, division and root rounded to nearest. The powers of Adam's corrections
are made by torch beforehand: Triton brings the power of another CUDA than torch was built with, and they differ in the
last bit at every third step.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import sys

from ampsim._triton import jit, tl
from ampsim.torch.dynamo import leave_alone
from ampsim.torch.gradients.kernels import peak_and_squares, unscale_squares


@jit()
def _place(tiles, tile, table, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803 - Triton's convention
    """Return the row of a tile's tensor, where in it the tile starts, and how many elements it has from there on."""
    row = table + WIDTH * tl.load(tiles + 2 * tile)
    start = tl.load(tiles + 2 * tile + 1).to(tl.int64) * BLOCK
    return row, start, tl.load(row) - start


@jit()
def _read(pointer, left, BLOCK: tl.constexpr, WHOLE: tl.constexpr):  # noqa: N803
    """Read a tile as float32. One that is WHOLE, and promised to be aligned, is read 16 bytes at once."""
    offsets = tl.arange(0, BLOCK)
    values = tl.load(pointer + offsets) if WHOLE else tl.load(pointer + offsets, mask=offsets < left, other=0.0)
    return values.to(tl.float32)


@jit()
def _write(pointer, values, left, BLOCK: tl.constexpr, WHOLE: tl.constexpr):  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    if WHOLE:
        tl.store(pointer + offsets, values)
    else:
        tl.store(pointer + offsets, values, mask=offsets < left)


@jit(do_not_specialize=["number", "max_norm", "interval"])
def check(
    tiles, number, table, partials, done, scale, max_norm, found, current, tracker, interval, counted,
    dtype: tl.constexpr, BOUND: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
    GROWTH: tl.constexpr, BACKOFF: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Read all tiles; the last program to end writes norm, found_inf, divisor, and the scale after `current`."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    total, highest = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float32)
    tile = program.to(tl.int64)
    while tile < number:
        row, start, left = _place(tiles, tile, table, 2, BLOCK)
        address = tl.load(row + 1)
        pointer = address.to(tl.pointer_type(dtype)) + start
        if (left >= BLOCK) & (address % 16 == 0):
            peak, squares = peak_and_squares(_read(tl.multiple_of(pointer, 16), left, BLOCK, WHOLE=True))
        else:
            peak, squares = peak_and_squares(_read(pointer, left, BLOCK, WHOLE=False))
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
        is_finite = _finish(tl.sum(parts), tl.max(peaks).to(tl.float32), scale, max_norm, found, BOUND)
        if current is not None:
            _update_scale(is_finite, current, tracker, interval, found, counted, GROWTH, BACKOFF, LOW, HIGH)


@jit()
def _finish(total, largest, scale, max_norm, found, BOUND: tl.constexpr):  # noqa: N803
    s = tl.load(scale)
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
    tl.store(found + 1, tl.where(is_finite, 0.0, 1.0))
    tl.store(found + 2, divisor)
    return is_finite


@jit()
def _update_scale(
    is_finite, current, tracker, interval, found, counted,
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
    tl.store(found + 3, scale)
    tl.store(counted, tl.where(is_finite & (clean < interval), clean, 0).to(tl.int32))


@jit(do_not_specialize=["lr", "beta1", "beta2", "eps", "decay"])
def adam(
    tiles, table, powers1, powers2, found_inf, divisor, lr, beta1, beta2, eps, decay, dtype: tl.constexpr,
    DECAYS: tl.constexpr, DECOUPLED: tl.constexpr, MAXIMIZE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr, PART: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Step a part of one tile, unless found_inf is set or no element is left for it: then read nothing more."""
    program = tl.program_id(0).to(tl.int64)
    tile, skipped = program // (BLOCK // PART), program % (BLOCK // PART) * PART
    row, start, left = _place(tiles, tile, table, 5, BLOCK)
    start, left = start + skipped, left - skipped
    if (left > 0) & (tl.load(found_inf) == 0.0):
        grad, param, avg, square = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)
        tensor = tl.load(tiles + 2 * tile)
        nil = tl.full((), 0.0, tl.float32)  # the interpreter takes a number for float64
        lr, beta1, beta2, eps, decay = nil + lr, nil + beta1, nil + beta2, nil + eps, nil + decay
        correction1 = 1.0 - tl.load(powers1 + tensor)
        correction2 = tl.sqrt_rn(1.0 - tl.load(powers2 + tensor))
        by = tl.full((), 1.0, tl.float32) if divisor is None else tl.load(divisor)
        size = tl.div_rn(lr, correction1)
        g, p = grad.to(tl.pointer_type(dtype)) + start, param.to(tl.pointer_type(tl.float32)) + start
        m, v = avg.to(tl.pointer_type(tl.float32)) + start, square.to(tl.pointer_type(tl.float32)) + start
        if (left >= PART) & ((grad | param | avg | square) % 16 == 0):
            g, p = tl.multiple_of(g, 16), tl.multiple_of(p, 16)
            m, v = tl.multiple_of(m, 16), tl.multiple_of(v, 16)
            _update(g, p, m, v, left, by, size, correction2, lr, beta1, beta2, eps, decay, DECAYS, DECOUPLED, MAXIMIZE,
                    PART, WHOLE=True)  # fmt: skip
        else:
            _update(g, p, m, v, left, by, size, correction2, lr, beta1, beta2, eps, decay, DECAYS, DECOUPLED, MAXIMIZE,
                    PART, WHOLE=False)  # fmt: skip


@jit()
def _update(
    g, p, m, v, left, divisor, step_size, correction2, lr, beta1, beta2, eps, decay,
    DECAYS: tl.constexpr, DECOUPLED: tl.constexpr, MAXIMIZE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr, WHOLE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    zero = tl.zeros([BLOCK], tl.float32)
    # All is asked for before the first division waits: one way to the memory and back, not two.
    grad, param = _read(g, left, BLOCK, WHOLE), _read(p, left, BLOCK, WHOLE)
    first, second = _read(m, left, BLOCK, WHOLE), _read(v, left, BLOCK, WHOLE)
    grad = tl.div_rn(grad, zero + divisor)
    if MAXIMIZE:
        grad = -grad
    if DECAYS:
        if DECOUPLED:
            param = tl.fma(zero - lr * decay, param, param)
        else:
            grad = tl.fma(param, zero + decay, grad)
    avg = tl.fma(zero + beta1, first, tl.fma(zero - beta1, grad, grad))
    both = grad * grad
    square = tl.fma(zero + beta2, second, tl.fma(zero - beta2, both, both))
    denominator = tl.div_rn(tl.sqrt_rn(square), zero + correction2) + eps
    _write(p, param - tl.div_rn(step_size * avg, denominator), left, BLOCK, WHOLE)
    _write(m, avg, left, BLOCK, WHOLE)
    _write(v, square, left, BLOCK, WHOLE)


leave_alone(sys.modules[__name__], launch=True)  # loaded where first needed, after the package was marked
