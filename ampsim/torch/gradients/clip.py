"""Unscaling and clipping of gradients in one read.

torch reads and writes each gradient to unscale it, reads it for the norm, and reads and writes it
to clip. Both changes are multiplications by numbers that are known before the optimizer runs. One
read, for the norm and the non-finite check together, is enough. A fused optimizer multiplies in
its step, by the reciprocal of its ``grad_scale``; for other optimizers there is one write.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.unscale import (
    FoundInf,
    check,
    copied,
    multiply_,
    norm_and_check,
    norm_on_host,
)


class Clipped(NamedTuple):
    """The result of a clip."""

    norm: Tensor  # (), float32: of all unscaled gradients, before the clip
    found_inf: FoundInf
    divisor: Tensor | None  # (), float32: of the fused step; None if all is done


def divided_error() -> RuntimeError:
    """Return the error for gradients of which another optimizer has divided some."""
    return RuntimeError(
        "unscale_and_clip_ of gradients that another optimizer has divided: expected each "
        "parameter in one optimizer; call unscale_ for both, then clip_grad_norm_"
    )


@torch.no_grad()
def unscale_and_clip_(
    groups: Groups,
    scale: Tensor,
    max_norm: float,
    *,
    folds: bool,
    may_be_below_one: bool,
) -> Clipped:
    """Unscale gradients and clip their total 2-norm.

    Args:
        groups: Gradients multiplied by the scale.
        scale: Loss scale, shape (), float32, on any device.
        max_norm: Largest norm after the clip; at least 0.
        folds: Whether to leave the gradients as they are, for a fused step with `divisor`.
        may_be_below_one: Whether the scale may be below 1, so that a division may overflow.

    Returns:
        The norm, the flags of gradients that are not finite once unscaled, and the divisor.
    """
    if not groups:
        return Clipped(torch.zeros((), dtype=torch.float32), FoundInf(), None)
    home = next(iter(groups))[0]
    if folds and scale.is_cpu and max_norm > 0:
        # After a large read little else is in the cache: numbers are faster than tensors.
        norm = norm_on_host(groups, scale.item())
        if norm is not None:
            number = scale.item() / min(1.0, max_norm / (norm + 1e-6))
            found = FoundInf({home: torch.zeros((), dtype=torch.float32)})
            total = torch.tensor(norm, dtype=torch.float32)
            return Clipped(total, found, torch.tensor(number, dtype=torch.float32))
    divisor = copied(scale, home)
    total, found = norm_and_check(groups, divisor)
    # A norm in float32 does not show whether a gradient leaves a narrower format. A clipped
    # gradient is at most max_norm, so the format needs another read only if it is below that.
    is_narrow = any(max_norm > torch.finfo(dtype).max for _, dtype in groups)
    if is_narrow and may_be_below_one:
        check(groups, found, scale)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
    if folds:
        return Clipped(total, found, divisor / factor)
    multiply_(groups, divisor.double().reciprocal().float() * factor)
    return Clipped(total, found, None)
