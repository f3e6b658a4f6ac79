"""Arithmetic on gradients: the non-finite check, the division by the scale, and the norm."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.norms import on_host, sum_of_squares

# A norm below this bounds every element away from float32's largest number, 3.4028e38.
SAFE = 3.4e38 * (1 - 1e-5)


class FoundInf(dict[torch.device, Tensor]):
    """The flags of gradients by device, 1.0 if any was inf or NaN, else 0.0; (), float32."""

    def join(self, flag: Tensor) -> None:
        """Set the flag of a device to 1 if `flag` is; without one, `flag` becomes it."""
        device = flag.device
        self[device] = torch.maximum(self[device], flag) if device in self else flag


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`; only a copy to the host is waited for."""
    if tensor.device == device:
        return tensor
    with torch.no_grad():
        return tensor.to(device, non_blocking=device.type != "cpu")


def largest_flag(flags: Iterable[Tensor], home: torch.device) -> Tensor:
    """Return the largest of some flags on a device, shape (), float32; 0 without flags."""
    none = torch.zeros((), device=home)
    return torch.stack([none, *(copied(flag, home) for flag in flags)]).amax()


def _check_and_multiply_(grads: list[Tensor], inverse: Tensor, found: FoundInf) -> None:
    """Do what torch's kernel does: multiply in place, and set a flag to 1 if any was not finite.

    The check is of the gradients as they come in, that is scaled.
    """
    flag = found.get(inverse.device)
    if flag is None:
        flag = found[inverse.device] = torch.zeros_like(inverse)
    was_enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # noqa: FBT003, SLF001  # a sixth of no_grad()'s time
    try:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, flag, inverse)
    finally:
        torch._C._set_grad_enabled(was_enabled)  # noqa: SLF001


def multiply_and_check_(
    groups: Groups, inverse: Tensor, found: FoundInf, *, below_one: bool
) -> None:
    """Multiply gradients by the inverse scale in place; set a flag to 1 if any is not finite.

    With `below_one` a finite gradient may leave its format in the product: one more read.
    """
    for (device, dtype), grads in groups.items():
        group = Groups({(device, dtype): grads})
        # On CUDA torch's kernel takes a float64 number beyond float32 for inf, and no bfloat16.
        is_exact = device.type == "cpu" or dtype in (torch.float32, torch.float16)
        if is_exact:
            _check_and_multiply_(grads, copied(inverse, device), found)
        else:
            multiply_(group, inverse)
        if below_one or not is_exact:
            check(group, found)


def check(groups: Groups, found: FoundInf, scale: Tensor | None = None) -> None:
    """Set a flag to 1 if any gradient is not finite; leave the values of the gradients.

    With a `scale`, shape (), the check is of the gradients divided by it: max|g| / S is finite
    exactly if every g / S is, because rounding is monotonic. NaN and inf pass through.
    """
    for (device, dtype), grads in groups.items():
        if scale is None and device.type == "cpu":  # torch's kernel with a factor of 1
            _check_and_multiply_(grads, torch.ones((), device=device), found)
            continue
        peak = largest(grads)
        if scale is not None:
            peak = peak / copied(scale, device)
        is_finite = peak.to(dtype).isfinite()  # rounded as the quotient will be
        found.join((~is_finite).float())


@torch.no_grad()
def largest(grads: list[Tensor]) -> Tensor:
    """Return max |g| over gradients of one device and dtype, shape ().

    NaN if any is NaN, 0 without gradients. In float64 for float64 gradients, else in float32, as
    fused kernels compute.
    """
    wide = torch.promote_types(grads[0].dtype, torch.float32)
    filled = [grad for grad in grads if grad.numel()]
    if not filled:
        return torch.zeros((), dtype=wide, device=grads[0].device)
    if filled[0].is_cpu:  # there the inf-norm takes 16 times as long as this
        peaks = [torch.maximum(high, -low) for low, high in map(torch.aminmax, filled)]
    else:
        peaks = list(torch._foreach_norm(filled, float("inf")))  # noqa: SLF001
    return _whole(torch.stack([peak.to(wide) for peak in peaks]).amax())


def _whole(value: Tensor) -> Tensor:
    """Return a value, shape (), as a plain tensor; a DTensor is reduced over its mesh."""
    reduce = getattr(value, "full_tensor", None)
    return value if reduce is None else reduce()


def norm_on_host(groups: Groups, scale: float) -> float | None:
    """Return the unscaled 2-norm as a number; None if that would be a wait, or is not safe.

    If there is a number, every gradient is finite once unscaled. `norm_and_check` does the rest:
    other devices and dtypes, inf and NaN, sums that overflowed.
    """
    if not scale > 0.0 or not all(on_host(device, dtype) for device, dtype in groups):
        return None
    norm = math.sqrt(sum(map(sum_of_squares, groups.values()))) / scale
    return norm if norm < SAFE else None


def norm_and_check(groups: Groups, scale: Tensor) -> tuple[Tensor, FoundInf]:
    """Return the unscaled 2-norm of all gradients, shape (), float32, and their flags.

    Every gradient is finite if the sum of squares is. On the CPU a sum that overflowed, as it may
    for a gradient above 2^64, is computed again in float64. On other devices that would be a wait,
    and the step is skipped although it might have been taken.
    """
    home = scale.device
    found = FoundInf()
    inverse = scale.double().reciprocal()
    number = norm_on_host(groups, 1.0)
    if number is None:
        norm = _norm(groups, home, torch.float32)
    else:
        norm = torch.tensor(number, dtype=torch.float32, device="cpu").to(home)
    norm = norm * inverse.float()
    if norm.is_cpu and not norm.isfinite():
        check(groups, found, scale)
        norm = (_norm(groups, home, torch.float64) * inverse).float()
    else:
        found[home] = (~norm.isfinite()).float()
    return norm, found


def _norm(groups: Groups, home: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the 2-norm of all gradients, computed in `dtype` at least: float16 may overflow."""
    norms = []
    for (_, own), grads in groups.items():
        wide = torch.promote_types(own, dtype)
        norms += [
            norm.to(home, dtype)
            for norm in torch._foreach_norm(grads, 2, wide)  # noqa: SLF001
        ]
    return _whole(torch.linalg.vector_norm(torch.stack(norms)))


@torch.no_grad()
def multiply_(groups: Groups, factor: Tensor) -> None:
    """Multiply every gradient in place by a float32 number, shape ()."""
    for (device, dtype), grads in groups.items():
        here = copied(factor, device)
        if dtype in (torch.float32, torch.float64):
            torch._foreach_mul_(grads, here)
        else:  # on CUDA torch rounds the factor to the dtype first: 2^-25 is 0 in float16
            for grad in grads:
                grad.copy_(grad.float() * here)
