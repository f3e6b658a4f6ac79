"""The only arithmetic on gradients: the non-finite check, the division by the scale, the norm and the clip.

torch reads and writes every gradient to unscale it, reads it for the norm, and reads and writes it to clip.
Unscaling and clipping are multiplications by numbers that are known before the optimizer runs, so with a
fused optimizer one read, for norm and check together, is enough: the rest is folded into ``grad_scale``.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.norms import are_small, finite_if_all_are, on_host, sum_of_squares

OnDevice = Callable[[torch.device], Tensor]  # of a number, shape (), float32

SAFE = 3.4e38 * (
    1 - 1e-5
)  # a norm below this bounds every element away from float32's largest, 3.4028e38


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
        torch._amp_foreach_non_finite_check_and_unscale_(
            grads, found.on(device), inverse_on(device)
        )


def multiply_and_check_(
    groups: Groups, inverse_on: OnDevice, found: FoundInf, *, below_one: bool
) -> None:
    """Multiply by the inverse scale in place; set a flag to 1 if any product is not finite in its own dtype.

    That is so of every gradient that was not finite. On the CPU torch's kernel, and one more read where the scale may
    be below one, so that a finite gradient may have left its format. Elsewhere a product, and one more read.
    """
    recording = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # noqa: SLF001, FBT003 - what torch.no_grad() does, in a sixth of the time
    try:
        for (device, dtype), grads in groups.items():
            inverse = inverse_on(device)
            if device not in found:
                found[device] = torch.zeros_like(inverse)
            exact = device.type == "cpu"  # on CUDA torch's check rounds float64 to float32 first
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
        if device.type != "cpu":
            found.join(_is_not_finite(largest(grads), dtype))
        elif (
            not are_small(grads)
            and on_host(device, dtype)
            and math.isfinite(finite_if_all_are(grads))
        ):
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
    wide = _wide(grads)
    filled = [grad for grad in grads if grad.numel()]
    if not filled:
        return torch.zeros((), dtype=wide, device=grads[0].device)
    if grads[0].device.type == "cpu":  # there the inf-norm takes 16 times as long as this
        peaks = [torch.maximum(high, -low) for low, high in map(torch.aminmax, filled)]
    else:
        peaks = list(torch._foreach_norm(filled, float("inf")))  # noqa: SLF001 - one launch for all of them
    return whole(torch.stack([peak.to(wide) for peak in peaks]).amax())


def _wide(grads: list[Tensor]) -> torch.dtype:
    return torch.float64 if grads[0].dtype is torch.float64 else torch.float32


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

    Both have shape (), float32. One read. Every gradient is finite if the sum of squares is. On the CPU a sum that
    overflowed, as it may when a gradient exceeds 2^64, is looked at again in float64. On other devices that would be a
    wait, and the step is skipped although it might have been saved.
    """
    if all(on_host(device, dtype) for device, dtype in groups):
        number = norm_on_host(groups, 1.0)
        if number is None:
            return _norm_and_check_again(groups, inverse)
        norm = torch.tensor(number, dtype=torch.float32, device="cpu").to(inverse.device) * inverse
    else:
        norms = [
            norm.to(inverse.device, torch.float32)
            for grads in groups.values()
            for norm in _norms(grads)
        ]
        norm = whole(torch.linalg.vector_norm(torch.stack(norms))) * inverse
    if norm.device.type == "cpu" and not norm.isfinite():
        return _norm_and_check_again(groups, inverse)
    return norm, (~norm.isfinite()).float()


def _norm_and_check_again(groups: Groups, inverse: Tensor) -> tuple[Tensor, Tensor]:
    home = inverse.device
    peaks = {key: largest(grads).to(home) * inverse for key, grads in groups.items()}
    flag = torch.stack([_is_not_finite(peak, dtype) for (_, dtype), peak in peaks.items()]).amax()
    if flag:
        return torch.stack([peak.float() for peak in peaks.values()]).amax(), flag
    exact = [
        torch.linalg.vector_norm(g, dtype=torch.float64) for grads in groups.values() for g in grads
    ]
    norm = (
        whole(torch.linalg.vector_norm(torch.stack([n.to(home) for n in exact]))) * inverse.double()
    )
    return norm.float(), flag


def _norms(grads: list[Tensor]) -> Iterable[Tensor]:
    """Return the norm of each gradient in float32 at least: a float16 norm would overflow where no element does."""
    wide = _wide(grads)
    if grads[0].device.type != "cpu":
        return torch._foreach_norm(grads, 2, wide)  # noqa: SLF001 - one launch for all of them
    return [torch.linalg.vector_norm(g, dtype=wide) for g in grads]


@torch.no_grad()
def multiply_(groups: Groups, factor_on: OnDevice) -> None:
    """Multiply every gradient in place by a float32 number."""
    for (device, dtype), grads in groups.items():
        factor = factor_on(device)
        if dtype in (torch.float32, torch.float64):
            torch._foreach_mul_(grads, factor)
        else:  # on CUDA torch rounds the factor to the gradient's dtype first: 2^-25 is 0 in float16
            for grad in grads:
                grad.copy_(grad.float() * factor)
