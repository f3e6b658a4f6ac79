"""Unscale, clip and step one optimizer within one ticket: what happens to tensors, without tickets or locks.

`exact_torch` repeats torch: gradients are then checked scaled only, so that at a scale below 1 a step with inf
is possible.
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.torch.gradients import unscale
from ampsim.torch.state.versions import Version
from ampsim.torch.step.records import Record, Stage


def is_fused(optimizer: Optimizer) -> bool:
    """Whether the optimizer's kernel divides by ``grad_scale`` and skips on ``found_inf`` itself.

    One that wants the scaler itself, as ``step(grad_scaler=...)``, does not: torch stopped recommending that,
    and here its gradients are unscaled before its step like anyone's.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and not _wants_scaler(type(optimizer).step)


@functools.lru_cache(maxsize=64)
def _wants_scaler(step: Callable[..., Any]) -> bool:
    return "grad_scaler" in inspect.signature(step).parameters


def unscale_(optimizer: Optimizer, version: Version, record: Record, *, exact_torch: bool, allow_fp16: bool) -> None:
    """Divide all gradients by the version's scale; `record` notes whether all were finite."""
    groups = unscale.gradients(optimizer, allow_fp16=allow_fp16)
    unscale.check_and_unscale_(groups, version.inverse_on, record.found_on)
    if not exact_torch and version.may_be_below_one:
        unscale.check(groups, record.found_on)  # a finite gradient may have left its format just now


def unscale_and_clip_(
    optimizer: Optimizer, version: Version, record: Record, *, max_norm: float, allow_fp16: bool
) -> Tensor:
    """Unscale and clip in one read; with a fused optimizer the multiplication is left to its kernel.

    Returns the unscaled 2-norm before clipping, shape (), float32.
    """
    fused = is_fused(optimizer)
    groups = unscale.gradients(optimizer, allow_fp16=fused or allow_fp16)
    if not groups:
        return torch.zeros(())
    home = next(iter(groups))[0]
    if home.type == version.device.type == "cpu" and fused and max_norm > 0:
        norm = _fold_on_host(groups, max_norm, version.read().scale, record, home)
        if norm is not None:
            return norm
    norm, record.found_inf[home] = unscale.norm_and_check(groups, version.inverse_on(home))
    _note_narrow(groups, max_norm, version, record)
    # torch's clip: g * min(1, max_norm / (norm + 1e-6)), here in one product with 1 / scale
    clip = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if fused:
        record.folded = version.scale_on(home) / clip
    else:
        factor = version.inverse_on(home) * clip
        unscale.multiply_(groups, lambda device: factor.to(device, non_blocking=True))
    return norm


def _fold_on_host(
    groups: unscale.Groups, max_norm: float, scale: float, record: Record, home: torch.device
) -> Tensor | None:
    """`unscale_and_clip_` with Python's numbers, where they need no wait; None where they do, or do not suffice.

    Right after a read of all gradients nothing else is in the cache, and each operation on a tensor takes 10 us.
    """
    number = unscale.norm_on_host(groups, scale)
    if number is None:
        return None
    divisor = scale / min(1.0, max_norm / (number + 1e-6))
    record.folded = torch.tensor(divisor, dtype=torch.float32, device=home)
    record.found_inf[home] = torch.zeros((), device=home)
    return torch.tensor(number, dtype=torch.float32, device=home)


def _note_narrow(groups: unscale.Groups, max_norm: float, version: Version, record: Record) -> None:
    """Note gradients that leave a format narrower than float32: their norm does not tell.

    A clipped gradient is at most `max_norm`, so that only a clip to more than the format holds needs another read.
    """
    narrow = {key: grads for key, grads in groups.items() if max_norm > torch.finfo(key[1]).max}
    if narrow and version.may_be_below_one:
        for device, flag in unscale.check_unscaled(narrow, version.scale_on).items():
            record.found_inf[device] = torch.maximum(record.found_on(device), flag)


def step_plain(optimizer: Optimizer, record: Record, args: Any, kwargs: Any) -> Any:
    """Call ``optimizer.step`` unless a flag is set. Reads the flags: waits for their devices."""
    if not record.found_inf:
        raise AssertionError("No inf checks were recorded for this optimizer.")
    if sum(flag.item() for flag in record.found_inf.values()):
        return None
    return optimizer.step(*args, **kwargs)


def step_fused(optimizer: Any, version: Version, record: Record, args: Any, kwargs: Any, *, exact_torch: bool) -> Any:
    """Hand scale and flag to the optimizer's kernel. Waits for nothing, but where the optimizer has no state yet.

    A step that raises leaves nothing behind.
    """
    unscaled = record.stage is Stage.UNSCALED
    if not unscaled:
        record.found_inf = _check_for_kernel(optimizer, version, exact_torch=exact_torch)
    first = not exact_torch and _may_lack_state(optimizer)
    if first and any(flag.item() for flag in record.found_inf.values()):
        return None
    result = _call_fused(optimizer, version, record, args, kwargs, unscaled=unscaled)
    if first and not optimizer.state:
        _stateless.add(optimizer)
    return result


_stateless: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()  # those that were stepped and keep nothing


def _may_lack_state(optimizer: Optimizer) -> bool:
    """Whether a step may make state for a parameter, as an optimizer's first does.

    A kernel that skips must not be the one to make it: torch's fused SGD allocates its momentum, the kernel
    leaves it as it is, and the next step takes what the memory held for the momentum. So such a step waits
    for its flag.
    """
    if optimizer in _stateless or len(optimizer.state) >= sum(len(group["params"]) for group in optimizer.param_groups):
        return False
    return len(optimizer.state) < sum(p.grad is not None for g in optimizer.param_groups for p in g["params"])


def _call_fused(optimizer: Any, version: Version, record: Record, args: Any, kwargs: Any, *, unscaled: bool) -> Any:
    home = next(iter(record.found_inf), torch.device("cpu"))
    flags = [flag.to(home, non_blocking=True) for flag in record.found_inf.values()]
    scale = record.folded if unscaled else version.scale_on(home)
    theirs = {name: value for name, value in vars(optimizer).items() if name in ("grad_scale", "found_inf")}
    own = theirs.get("grad_scale")
    optimizer.grad_scale = own if scale is None else scale if own is None else scale * own
    optimizer.found_inf = _flag(optimizer, flags, home)
    try:
        result = optimizer.step(*args, **kwargs)
    except BaseException:
        del optimizer.grad_scale, optimizer.found_inf
        vars(optimizer).update(theirs)
        raise
    del optimizer.grad_scale, optimizer.found_inf
    return result


def _flag(optimizer: Optimizer, flags: list[Tensor], home: torch.device) -> Tensor | None:
    """One flag for the kernel, shape (), float32; or None where it is known to be 0 and None will do.

    torch's own optimizers take None, and then do not subtract the flag from the step count of every parameter.
    """
    if home.type == "cpu" and type(optimizer).__module__.startswith("torch.optim.") and not any(flags):
        return None
    if len(flags) == 1:
        return flags[0]
    # Kernels compare the flag with 1, so a sum over devices must not make it 2.
    return torch.stack(flags).amax() if flags else torch.zeros((), device=home)


def _check_for_kernel(optimizer: Optimizer, version: Version, *, exact_torch: bool) -> dict[torch.device, Tensor]:
    groups = unscale.gradients(optimizer, allow_fp16=True)
    if not exact_torch and version.may_be_below_one:
        return unscale.check_unscaled(groups, version.scale_on)
    found = Record()
    unscale.check(groups, found.found_on)
    return found.found_inf
