"""The only arithmetic on gradients: the non-finite check, the division by the scale, the norm and the clip.

torch reads and writes every gradient to unscale it, reads it for the norm, and reads and writes it to clip.
Unscaling and clipping are multiplications by numbers that are known before the optimizer runs, so with a
fused optimizer one read, for norm and check together, is enough: the rest is folded into ``grad_scale``.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ampsim.torch.gradients.collect import Groups, PlainGroups, are_plain
from ampsim.torch.gradients.norms import are_small, finite_if_all_are, on_host, sum_of_squares

if TYPE_CHECKING:
    from ampsim.torch.gradients.kernels import Checked

T = TypeVar("T")
OnDevice = Callable[[torch.device], Tensor]  # of a number, shape (), float32
UpdateOn = Callable[[torch.device], Any]  # of what `kernels.check` is told of an update

EXACT_CHECK = {"cpu"}
"""Where torch's own check looks at gradients as they are. On CUDA it rounds float64 to float32 first."""
KERNEL_DEVICES = {"cuda"}
SAFE = 3.4e38 * (1 - 1e-5)  # a norm below this bounds every element away from float32's largest, 3.4028e38


class FoundInf(dict[torch.device, Tensor]):
    """The flags of gradients by device, 1.0 if any was inf or NaN, else 0.0; (), float32."""

    def on(self, device: torch.device) -> Tensor:
        """Return the flag of a device, made when first asked for."""
        if device not in self:
            self[device] = torch.zeros((), dtype=torch.float32, device=device)
        return self[device]

    def join(self, flag: Tensor) -> None:
        """Set the flag of a device to 1 if this one is; where there is none yet, this one becomes it."""
        device = flag.device
        self[device] = torch.maximum(self[device], flag) if device in self else flag


@torch.no_grad()
def check_and_multiply_(groups: Groups, inverse_on: OnDevice, found: FoundInf) -> None:
    """Do what torch's kernel does: multiply by the inverse scale in place; set a flag to 1 if any was not finite.

    The check is of the gradients as they come in, that is scaled. On CUDA the kernel takes a float64 gradient beyond
    float32 for inf, and no bfloat16.
    """
    for (device, _), grads in groups.items():
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found.on(device), inverse_on(device))


def multiply_and_check_(groups: Groups, inverse_on: OnDevice, found: FoundInf, *, below_one: bool) -> None:
    """Multiply by the inverse scale in place; set a flag to 1 if any product is not finite in its own dtype.

    That is so of every gradient that was not finite. On CUDA one read and write. On the CPU torch's kernel, and one
    more read where the scale may be below one, so that a finite gradient may have left its format.
    """
    recording = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # noqa: SLF001, FBT003 - what torch.no_grad() does, in a sixth of the time
    try:
        for (device, dtype), grads in groups.items():
            kind, inverse = device.type, inverse_on(device)
            if device not in found:
                found[device] = torch.zeros_like(inverse)
            if kind in KERNEL_DEVICES and _multiplied_on_cuda(grads, inverse, found[device]):
                continue
            exact = kind in EXACT_CHECK
            if exact:
                torch._amp_foreach_non_finite_check_and_unscale_(grads, found[device], inverse)
            else:
                multiply_({(device, dtype): grads}, inverse_on)
            if below_one or not exact:
                check({(device, dtype): grads}, found)
    finally:
        torch._C._set_grad_enabled(recording)  # noqa: SLF001


@torch.no_grad()
def check(groups: Groups, found: FoundInf) -> None:
    """Set a flag to 1 if any gradient is not finite; leaves the gradients as they are.

    One read where it can be: on the CPU a finite sum has finite terms. If it is not, it may have
    overflowed, and torch's kernel looks again; it reads and writes, with an inverse scale of 1. Where all gradients
    are small it looks at once: what it writes is in the cache still.
    """
    for (device, dtype), grads in groups.items():
        if read := _read_on_cuda(grads):
            found.join(read.found_inf)
        elif device.type not in EXACT_CHECK:
            found.join(_is_not_finite(largest(grads), dtype))
        elif not are_small(grads) and on_host(device, dtype) and math.isfinite(finite_if_all_are(grads)):
            found.join(torch.zeros((), device=device))
        else:
            check_and_multiply_({(device, dtype): grads}, ones_on, found)


@torch.no_grad()
def check_unscaled(groups: Groups, scale_on: OnDevice, found: FoundInf) -> None:
    """Set a flag to 1 if any gradient divided by the scale is not finite in its own dtype; leaves them as they are.

    One read. max|g| / S is finite exactly if every g / S is, because rounding is monotonic. NaN and inf pass
    through.
    """
    for (device, dtype), grads in groups.items():
        scale = scale_on(device)
        if on_host(device, dtype) and math.sqrt(sum_of_squares(grads)) < SAFE * scale.item():
            found.join(torch.zeros((), device=device))
        else:
            found.join(_is_not_finite(largest(grads) / scale, dtype))


def ones_on(device: torch.device) -> Tensor:
    """Return 1.0 on a device, shape (), float32: the inverse scale of gradients that are only looked at."""
    return torch.ones((), device=device)


@torch.no_grad()
def largest(grads: list[Tensor]) -> Tensor:
    """Return max |g| over gradients of one device and dtype, shape (); NaN if any is NaN, 0 if there are none.

    One read. In float64 for float64 gradients, in float32 for others: what fused kernels compute in.
    """
    if read := _read_on_cuda(grads):
        return read.largest
    wide = torch.float64 if grads[0].dtype is torch.float64 else torch.float32
    filled = [grad for grad in grads if grad.numel()]
    if not filled:
        return torch.zeros((), dtype=wide, device=grads[0].device)
    if grads[0].device.type == "cpu":  # there the inf-norm takes 16 times as long as this
        peaks = [torch.maximum(high, -low) for low, high in map(torch.aminmax, filled)]
    else:
        peaks = list(torch._foreach_norm(filled, float("inf")))  # noqa: SLF001 - one launch for all of them
    return whole(torch.stack([peak.to(wide) for peak in peaks]).amax())


def whole(value: Tensor) -> Tensor:
    """Return a value, shape (), as a plain tensor: of a DTensor reduced over its mesh, as every rank must see it."""
    reduce: Callable[[], Tensor] | None = getattr(value, "full_tensor", None)
    return value if reduce is None else reduce()


def _is_not_finite(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 1.0 if a value, shape (), is inf or NaN once rounded to `dtype`, else 0.0; (), float32."""
    return (~value.to(dtype).isfinite()).float()


def norm_on_host(groups: Groups, scale: float) -> float | None:
    """Return the unscaled 2-norm of all gradients as a number; None where that would be a wait, or is not safe.

    One read. Every gradient is finite once unscaled if there is a number. All the rest is for `norm_and_check`:
    other devices and dtypes, inf and NaN, sums that overflowed.
    """
    if not scale > 0.0 or not all(on_host(device, dtype) for device, dtype in groups):
        return None
    norm = math.sqrt(sum(map(sum_of_squares, groups.values()))) / scale
    return norm if norm < SAFE else None


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`. Only a copy to the host is waited for: it may be used at once."""
    if tensor.device == device:
        return tensor
    with torch.no_grad():
        return tensor.to(device, non_blocking=device.type != "cpu")


def norm_and_check(groups: Groups, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unscaled 2-norm of all gradients, and 1.0 if any is not finite once unscaled, else 0.0.

    Both have shape (), float32. One read. On CUDA the kernels take care of range. Elsewhere every gradient is finite
    if the sum of squares is; on the CPU a sum that overflowed, as it may when a gradient exceeds 2^64, is looked at
    again in float64; on other devices, and without Triton, that would be a wait, and the step is skipped although it
    might have been saved.
    """
    reads = [_read_on_cuda(grads, inverse) for grads in groups.values()]
    if groups and all(reads):
        return _combined([read for read in reads if read], inverse.device)
    if all(on_host(device, dtype) for device, dtype in groups):
        number = norm_on_host(groups, 1.0)
        if number is None:
            return _norm_and_check_again(groups, inverse)
        norm = torch.tensor(number, dtype=torch.float32, device="cpu").to(inverse.device) * inverse
    else:
        norms = [norm.to(inverse.device, torch.float32) for grads in groups.values() for norm in _norms(grads)]
        norm = whole(torch.linalg.vector_norm(torch.stack(norms))) * inverse
    if norm.device.type == "cpu" and not norm.isfinite():
        return _norm_and_check_again(groups, inverse)
    return norm, (~norm.isfinite()).float()


def _read_on_cuda(grads: list[Tensor], inverse: Tensor | None = None) -> "Checked | None":
    """Read norm, check and largest gradient by Triton's kernels; None where they cannot be used."""

    def read(kernels: Any) -> "Checked":
        scale = None if inverse is None else copied(inverse, grads[0].device).reciprocal()
        checked: Checked = kernels.norm_and_flag(grads, scale)
        return checked

    return _by_kernels(grads, read)


@functools.cache
def triton_kernels() -> Any:
    """Import Triton, which nothing else needs, and the kernels."""
    from ampsim.torch.gradients import kernels

    return kernels


def check_at_once(
    groups: Groups, scale_on: OnDevice, max_norm: float | Tensor | None, update_on: UpdateOn, *, ours: bool
) -> "Checked | None":
    """Do `kernels.check` of gradients, where it says of them all that a step needs and, in a capture, knows them.

    A step of `ours` takes them as the check does. torch's fused kernels write unscaled gradients in their own dtype,
    where a narrower one than float32 may overflow. `max_norm` is what to clip to: shape () if a tensor, on any device.
    """
    ((device, dtype), grads), *more = groups.items()
    if not ours and (more or dtype is not torch.float32 or device.type not in KERNEL_DEVICES):
        return None
    kernels, is_plain = triton_kernels(), isinstance(groups, PlainGroups) or are_plain(grads)
    try:
        if not (ours or (is_plain and kernels.available(device))):
            return None
        if isinstance(max_norm, Tensor):
            max_norm = copied(max_norm.float(), device)
        checked: Checked = kernels.check(grads, scale_on(device), max_norm, update_on(device))
    except kernels.NewAddressesError:  # a graph's own gradients
        return None
    return checked


def _multiplied_on_cuda(grads: list[Tensor], factor: Tensor, found: Tensor) -> bool:
    """Multiply and check by Triton's kernels; False where they cannot be used."""

    def multiply(kernels: Any) -> bool:
        return all(map(kernels.is_dense, grads)) and kernels.multiply_and_flag(grads, factor, found) is None

    return bool(_by_kernels(grads, multiply))


def _by_kernels(grads: list[Tensor], work: Callable[[Any], T]) -> T | None:
    if grads[0].device.type not in KERNEL_DEVICES:
        return None
    kernels = triton_kernels()
    try:
        return work(kernels) if kernels.takes(grads) else None
    except kernels.NewAddressesError:  # a graph's own gradients: torch's kernels take addresses by value
        return None


def _combined(reads: list["Checked"], home: torch.device) -> tuple[Tensor, Tensor]:
    """Combine the norms and the flags of several reads, on one device."""
    if len(reads) == 1:
        return reads[0].norm.to(home), reads[0].found_inf.to(home)
    norms = torch.stack([read.norm.to(home) for read in reads])
    flags = torch.stack([read.found_inf.to(home) for read in reads])
    return torch.linalg.vector_norm(norms, dtype=torch.float64).float(), flags.amax()


def _norm_and_check_again(groups: Groups, inverse: Tensor) -> tuple[Tensor, Tensor]:
    home = inverse.device
    peaks = {key: largest(grads).to(home) * inverse for key, grads in groups.items()}
    flag = torch.stack([_is_not_finite(peak, dtype) for (_, dtype), peak in peaks.items()]).amax()
    if flag:
        return torch.stack([peak.float() for peak in peaks.values()]).amax(), flag
    exact = [torch.linalg.vector_norm(g, dtype=torch.float64) for grads in groups.values() for g in grads]
    norm = whole(torch.linalg.vector_norm(torch.stack([n.to(home) for n in exact]))) * inverse.double()
    return norm.float(), flag


def _norms(grads: list[Tensor]) -> Iterable[Tensor]:
    if grads[0].device.type != "cpu":
        return torch._foreach_norm(grads)  # noqa: SLF001 - one launch for all of them
    return [torch.linalg.vector_norm(g) for g in grads]


@torch.no_grad()
def multiply_(groups: Groups, factor_on: OnDevice) -> None:
    """Multiply every gradient in place by a float32 number."""
    for (device, dtype), grads in groups.items():
        factor = factor_on(device)
        if device.type in KERNEL_DEVICES and _multiplied_on_cuda(grads, factor, torch.zeros((), device=device)):
            continue
        if dtype in (torch.float32, torch.float64):
            torch._foreach_mul_(grads, factor)
        else:  # on CUDA torch rounds the factor to the gradient's dtype first: 2^-25 is 0 in float16
            for grad in grads:
                grad.copy_(grad.float() * factor)
