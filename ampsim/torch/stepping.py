"""Unscale, clip and step one optimizer within one ticket: what happens to tensors, without tickets or locks.

`safe` is False only to repeat torch exactly: then gradients are checked scaled only, so that at a scale below
1 a step with inf is possible.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.torch import unscale
from ampsim.torch.ledger import Record, Stage
from ampsim.torch.versions import Version


def is_fused(optimizer: Optimizer) -> bool:
    """Whether the optimizer's kernel divides by ``grad_scale`` and skips on ``found_inf`` itself."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def unscale_(optimizer: Optimizer, version: Version, record: Record, *, safe: bool, allow_fp16: bool) -> None:
    """Divide all gradients by the version's scale; `record` notes whether all were finite."""
    groups = unscale.gradients(optimizer, allow_fp16=allow_fp16)
    unscale.check_and_unscale_(groups, version.inverse_on, record.found_on)
    if safe and version.may_be_below_one:
        unscale.check(groups, record.found_on)  # a finite gradient may have left its format just now


def unscale_and_clip_(
    optimizer: Optimizer, max_norm: float, version: Version, record: Record, *, allow_fp16: bool
) -> Tensor:
    """Unscale and clip in one read; with a fused optimizer the multiplication is left to its kernel.

    Returns the unscaled 2-norm before clipping, shape (), float32.
    """
    fused = is_fused(optimizer)
    groups = unscale.gradients(optimizer, allow_fp16=fused or allow_fp16)
    if not groups:
        return torch.zeros(())
    home = next(iter(groups))[0]
    inverse = version.inverse_on(home)
    norm, record.found_inf[home] = unscale.norm_and_check(groups, inverse)
    # torch's clip: g * min(1, max_norm / (norm + 1e-6)), here in one product with 1 / scale
    clip = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if fused:
        record.folded = version.scale_on(home) / clip
    else:
        factor = inverse * clip
        unscale.multiply_(groups, lambda device: factor.to(device, non_blocking=True))
    return norm


def step_plain(optimizer: Optimizer, record: Record, args: Any, kwargs: Any) -> Any:
    """Call ``optimizer.step`` unless a flag is set. Reads the flags: waits for their devices."""
    if not record.found_inf:
        raise AssertionError("No inf checks were recorded for this optimizer.")
    if sum(flag.item() for flag in record.found_inf.values()):
        return None
    return optimizer.step(*args, **kwargs)


def step_fused(optimizer: Any, version: Version, record: Record, args: Any, kwargs: Any, *, safe: bool) -> Any:
    """Hand scale and flag to the optimizer's kernel. Waits for nothing."""
    unscaled = record.stage is Stage.UNSCALED
    if not unscaled:
        _check_for_kernel(optimizer, version, record, safe=safe)
    home = next(iter(record.found_inf), torch.device("cpu"))
    flags = [flag.to(home, non_blocking=True) for flag in record.found_inf.values()]
    scale = record.folded if unscaled else version.scale_on(home)
    own = getattr(optimizer, "grad_scale", None)
    optimizer.grad_scale = own if scale is None else scale if own is None else scale * own
    # Kernels compare the flag with 1, so a sum over devices must not make it 2.
    optimizer.found_inf = torch.stack(flags).amax() if flags else torch.zeros((), device=home)
    try:
        return optimizer.step(*args, **kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def _check_for_kernel(optimizer: Optimizer, version: Version, record: Record, *, safe: bool) -> None:
    groups = unscale.gradients(optimizer, allow_fp16=True)
    if not (safe and version.may_be_below_one):
        unscale.check(groups, record.found_on)
        return
    # max|g| / S is finite exactly if every g / S is, because rounding is monotonic. NaN and inf pass through.
    for (device, dtype), grads in groups.items():
        peak = unscale.largest({(device, dtype): grads}, device)
        flag = (~torch.isfinite(peak / version.scale_on(device))).float()
        record.found_inf[device] = torch.maximum(record.found_on(device), flag)
