"""What the fp16 experiments share: seeds, the precision of an arm, and what fp16 did to a gradient.

Parameters are float32. `torch.autocast` casts each weight to fp16 once per forward pass, so the
backward pass computes that weight's gradient *in fp16* and only then widens it into `.grad`.
Widening is exact: before it is unscaled, every element of `.grad` is the fp16 number that the
backward pass produced, underflow and overflow included. That is what is counted here; rounding a
float32 gradient to fp16 would miss all that was flushed in the layers above.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

SMALLEST_NORMAL = (
    2.0**-14
)  # of fp16; the smallest subnormal is 2^-24, the largest number 65504


def prepare(seed: int) -> torch.Generator:
    """Seed everything, one thread, deterministic kernels; returns the generator that draws the
    batches.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    # Nothing here reads memory before it writes it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    use_onednn(on=True)
    torch.backends.cudnn.allow_tf32 = (
        False  # else a float32 convolution has 10 bits of mantissa on a GPU
    )
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def use_onednn(*, on: bool) -> None:
    """Choose whether oneDNN computes on the CPU, until the next `prepare`.

    Without it a small convolution in native fp16 takes a third of the time on a processor with
    AVX512-FP16, and gives the same bits as on one that has no fp16 arithmetic. A matrix product
    takes up to four times as long.
    """
    torch.backends.mkldnn.set_flags(on)  # type: ignore[no-untyped-call]


def autocast(device: str, *, fp16: bool) -> torch.autocast:
    """Run in native fp16 on `device`, or in plain float32."""
    return torch.autocast(device, dtype=torch.float16, enabled=fp16)


def flat_gradient(model: nn.Module) -> Tensor:
    """Return every gradient of the model in one vector, in the order of `model.parameters()`."""
    return torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )


def flat_parameters(model: nn.Module) -> Tensor:
    """Return every parameter of the model in one new vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def all_finite(x: Tensor) -> bool:
    """Return whether neither inf nor NaN is anywhere; waits for the device."""
    return math.isfinite(
        x.abs().max()
    )  # NaN if one is; a seventh of the time of `isfinite`


def count_classes(gradient: Tensor, sizes: Sequence[int]) -> list[list[int]]:
    """Return how many elements of each layer fp16 holds as zero, subnormal, and not at all (inf or
    NaN).

    Args:
        gradient: (sum of sizes,) float32, the layers one after the other. A gradient that was not
            computed in fp16 is rounded to it here.
        sizes: elements a layer.

    Returns:
        Three lists (zero, subnormal, overflow) of one count per layer; the rest of a layer is
        normal.
    """
    magnitude = gradient.half().abs()
    zero = magnitude == 0
    classes = torch.stack(
        [zero, (magnitude < SMALLEST_NORMAL) & ~zero, ~magnitude.isfinite()]
    )
    counts = torch.stack(
        [part.sum(dim=1) for part in torch.split(classes, list(sizes), dim=1)], dim=1
    )
    return [[int(n) for n in row] for row in counts.tolist()]
