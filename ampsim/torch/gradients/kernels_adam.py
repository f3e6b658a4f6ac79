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
from ampsim.torch.gradients.kernels import place, read


@jit()
def _write(pointer, values, left, BLOCK: tl.constexpr, WHOLE: tl.constexpr):  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    if WHOLE:
        tl.store(pointer + offsets, values)
    else:
        tl.store(pointer + offsets, values, mask=offsets < left)


@jit(do_not_specialize=["lr", "beta1", "beta2", "eps", "decay"])
def adam(
    tiles, table, state, powers1, powers2, found_inf, divisor, lr, beta1, beta2, eps, decay, dtype: tl.constexpr,
    DECAYS: tl.constexpr, DECOUPLED: tl.constexpr, MAXIMIZE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr, PART: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Step a part of one tile, unless found_inf is set or no element is left for it: then read nothing more."""
    program = tl.program_id(0).to(tl.int64)
    tile, skipped = program // (BLOCK // PART), program % (BLOCK // PART) * PART
    row, start, left = place(tiles, tile, table, 2, BLOCK)
    start, left = start + skipped, left - skipped
    if (left > 0) & (tl.load(found_inf) == 0.0):
        tensor = tl.load(tiles + 2 * tile)
        grad, at = tl.load(row + 1), state + 3 * tensor
        param, avg, square = tl.load(at), tl.load(at + 1), tl.load(at + 2)
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
    grad, param = read(g, left, BLOCK, WHOLE), read(p, left, BLOCK, WHOLE)
    first, second = read(m, left, BLOCK, WHOLE), read(v, left, BLOCK, WHOLE)
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
