"""What torch's kernels do to a loss and to gradients, in numpy, to the last bit on a CPU.

The non-fused path multiplies by a reciprocal, ``g * float32(1 / float64(S))``; a fused optimizer divides,
``g / S``. The two differ in the last bit for about half of all gradients (4 768 of 10 000 at S = 1700).
Neither looks at what it computed: only the *scaled* gradient is checked, so a result may be inf with
found_inf 0.

float16 and bfloat16 are computed in float32 and rounded once at the end; float64 gradients meet the float32
scale in double. Equal to the last bit means equal up to the payload and sign of a NaN, which IEEE 754 leaves
open and which torch's vector and scalar loops fill differently for bfloat16.

Sources: aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp and FusedAdamKernel.cpp of torch 2.13.0, and runs.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Gradients = tuple[
    Array | None, ...
]  # one entry per parameter; None where backward left no gradient


def _opmath(array: Array) -> Array:
    """Return `array` in the format that kernels compute in: float64 stays, everything narrower is float32."""
    return array if array.dtype == np.float64 else array.astype(np.float32)


def scaled_loss(output: Array, scale: float) -> Array:
    """Return ``output * scale`` with the scale a 0-d float32 tensor.

    By torch's promotion a 0-d float16 loss becomes float32, a float16 vector stays float16 (and overflows
    from 65504), and integers become float32.
    """
    with np.errstate(all="ignore"):
        product = np.asarray(_opmath(output) * np.float32(scale))
        floating = (
            output.dtype.kind == "f" or output.dtype.name == "bfloat16"
        )  # ml_dtypes' bfloat16 has kind 'V'
        return product.astype(output.dtype) if output.ndim > 0 and floating else product


def reciprocal(scale: float) -> np.float32:
    """Return ``float32(1 / float64(S))``: inf for S = 0 and S up to 2^-128, subnormal beyond S = 2^126."""
    with np.errstate(all="ignore"):
        return np.float32(np.float64(1.0) / np.float64(scale))


def found_inf(gradients: Gradients) -> float | None:
    """Return 1.0 if any element is inf or NaN, else 0.0; None if there was no gradient to check."""
    present = [g for g in gradients if g is not None]
    return float(any(not np.isfinite(_opmath(g)).all() for g in present)) if present else None


def unscaled(gradients: Gradients, inv_scale: np.float32) -> Gradients:
    """Return ``g * inv_scale``, finite or not; a reciprocal of exactly 1 leaves the gradients untouched."""
    if inv_scale == 1:
        return gradients
    with np.errstate(all="ignore"):
        return tuple(
            g if g is None else (_opmath(g) * inv_scale).astype(g.dtype) for g in gradients
        )


def divided(gradients: Gradients, divisor: float) -> Gradients:
    """Return ``g / S``, which a fused kernel writes back into the gradients."""
    with np.errstate(all="ignore"):
        by = np.float32(divisor)
        return tuple(g if g is None else (_opmath(g) / by).astype(g.dtype) for g in gradients)


def sum_float32(values: Iterable[float]) -> float:
    """Add left to right, rounding to float32 after each addition."""
    total = np.float32(0)
    with np.errstate(all="ignore"):
        for value in values:
            total = np.float32(total + np.float32(value))
    return float(total)
