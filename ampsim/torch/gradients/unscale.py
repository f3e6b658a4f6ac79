"""Arithmetic on gradients: the non-finite check, the division by the scale, and the norm."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import ParamSpec

import torch
from torch import Tensor

from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.norms import on_host, sum_of_squares

OnDevice = Callable[[torch.device], Tensor]  # of a number, shape (), float32

P = ParamSpec("P")

# A norm below this bounds every element away from float32's largest number, 3.4028e38.
SAFE = 3.4e38 * (1 - 1e-5)


class FoundInf(dict[torch.device, Tensor]):
    """The flags of gradients by device, 1.0 if any was inf or NaN, else 0.0; (), float32."""

    def join(self, flag: Tensor) -> None:
        """Set the flag of a device to 1 if `flag` is; without one, `flag` becomes it."""
        device = flag.device
        self[device] = torch.maximum(self[device], flag) if device in self else flag


def without_grad_mode(function: Callable[P, None]) -> Callable[P, None]:
    """Do what torch.no_grad() does, in a sixth of the time."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        was_enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # noqa: FBT003, SLF001
        try:
            function(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(was_enabled)  # noqa: SLF001

    return run


def _check_and_multiply_(grads: list[Tensor], inverse: Tensor, found: FoundInf) -> None:
    """Do what torch's kernel does: multiply in place, and set a flag to 1 if any was not finite.

    The check is of the gradients as they come in, that is scaled.
    """
    flag = found.get(inverse.device)
    if flag is None:
        flag = found[inverse.device] = torch.zeros_like(inverse)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, flag, inverse)


def _kernel_is_exact(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch's kernel checks each number of a dtype as it is.

    On CUDA it takes a float64 number beyond float32 for inf, and no bfloat16.
    """
    return device.type == "cpu" or dtype in (torch.float32, torch.float16)


@without_grad_mode
def multiply_and_check_(
    groups: Groups, inverse_on: OnDevice, found: FoundInf, *, below_one: bool
) -> None:
    """Multiply gradients by the inverse scale in place; set a flag to 1 if any is not finite.

    With `below_one` a finite gradient may leave its format in the product: one more read.
    """
    for (device, dtype), grads in groups.items():
        is_exact = _kernel_is_exact(device, dtype)
        if is_exact:
            _check_and_multiply_(grads, inverse_on(device), found)
        else:
            multiply_({(device, dtype): grads}, inverse_on)
        if below_one or not is_exact:
            check({(device, dtype): grads}, found)


@without_grad_mode
def check(groups: Groups, found: FoundInf) -> None:
    """Set a flag to 1 if any gradient is not finite; leave the values of the gradients."""
    for (device, dtype), grads in groups.items():
        if device.type == "cpu":  # torch's kernel with a factor of 1
            _check_and_multiply_(grads, ones_on(device), found)
        else:
            found.join(_is_not_finite(largest(grads), dtype))


@without_grad_mode
def check_unscaled(groups: Groups, scale_on: OnDevice, found: FoundInf) -> None:
    """Set a flag to 1 if any gradient divided by the scale is not finite; leave the gradients.

    max|g| / S is finite exactly if every g / S is, because rounding is monotonic. NaN and inf pass
    through.
    """
    for (device, dtype), grads in groups.items():
        found.join(_is_not_finite(largest(grads) / scale_on(device), dtype))


def ones_on(device: torch.device) -> Tensor:
    """Return 1.0 on a device, shape (), float32: the inverse scale of a mere check."""
    return torch.ones((), device=device)


@torch.no_grad()
def largest(grads: list[Tensor]) -> Tensor:
    """Return max |g| over gradients of one device and dtype, shape ().

    NaN if any is NaN, 0 without gradients. In float64 for float64 gradients, else in float32, as
    fused kernels compute.
    """
    wide = _wide(grads)
    filled = [grad for grad in grads if grad.numel()]
    if not filled:
        return torch.zeros((), dtype=wide, device=grads[0].device)
    if (
        grads[0].device.type == "cpu"
    ):  # there the inf-norm takes 16 times as long as this
        peaks = [torch.maximum(high, -low) for low, high in map(torch.aminmax, filled)]
    else:
        peaks = list(torch._foreach_norm(filled, float("inf")))  # noqa: SLF001
    return whole(torch.stack([peak.to(wide) for peak in peaks]).amax())


def _wide(grads: list[Tensor]) -> torch.dtype:
    return torch.float64 if grads[0].dtype is torch.float64 else torch.float32


def whole(value: Tensor) -> Tensor:
    """Return a value, shape (), as a plain tensor; a DTensor is reduced over its mesh."""
    reduce: Callable[[], Tensor] | None = getattr(value, "full_tensor", None)
    return value if reduce is None else reduce()


def _is_not_finite(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 1.0 if a value, shape (), is inf or NaN once rounded to `dtype`, else 0.0."""
    return (~value.to(dtype).isfinite()).float()


def norm_on_host(groups: Groups, scale: float) -> float | None:
    """Return the unscaled 2-norm as a number; None if that would be a wait, or is not safe.

    If there is a number, every gradient is finite once unscaled. `norm_and_check` does the rest:
    other devices and dtypes, inf and NaN, sums that overflowed.
    """
    if not scale > 0.0 or not all(on_host(device, dtype) for device, dtype in groups):
        return None
    norm = math.sqrt(sum(map(sum_of_squares, groups.values()))) / scale
    return norm if norm < SAFE else None


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`; only a copy to the host is waited for."""
    if tensor.device == device:
        return tensor
    with torch.no_grad():
        return tensor.to(device, non_blocking=device.type != "cpu")


def norm_and_check(groups: Groups, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unscaled 2-norm of all gradients, and 1.0 if any is not finite, else 0.0.

    Both have shape (), float32. Every gradient is finite if the sum of squares is. On the CPU a sum
    that overflowed, as it may for a gradient above 2^64, is computed again in float64. On other
    devices that would be a wait, and the step is skipped although it might have been taken.
    """
    if all(on_host(device, dtype) for device, dtype in groups):
        number = norm_on_host(groups, 1.0)
        if number is None:
            return _norm_and_check_again(groups, inverse)
        norm = (
            torch.tensor(number, dtype=torch.float32, device="cpu").to(inverse.device)
            * inverse
        )
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
    flag = torch.stack(
        [_is_not_finite(peak, dtype) for (_, dtype), peak in peaks.items()]
    ).amax()
    if flag:
        return torch.stack([peak.float() for peak in peaks.values()]).amax(), flag
    exact = [
        torch.linalg.vector_norm(g, dtype=torch.float64)
        for grads in groups.values()
        for g in grads
    ]
    norm = (
        whole(torch.linalg.vector_norm(torch.stack([n.to(home) for n in exact])))
        * inverse.double()
    )
    return norm.float(), flag


def _norms(grads: list[Tensor]) -> Iterable[Tensor]:
    """Return the norm of each gradient, in float32 at least: a float16 norm may overflow."""
    wide = _wide(grads)
    if grads[0].device.type != "cpu":
        return torch._foreach_norm(grads, 2, wide)  # noqa: SLF001
    return [torch.linalg.vector_norm(g, dtype=wide) for g in grads]


@torch.no_grad()
def multiply_(groups: Groups, factor_on: OnDevice) -> None:
    """Multiply every gradient in place by a float32 number."""
    for (device, dtype), grads in groups.items():
        factor = factor_on(device)
        if dtype in (torch.float32, torch.float64):
            torch._foreach_mul_(grads, factor)
        else:  # on CUDA torch rounds the factor to the dtype first: 2^-25 is 0 in float16
            for grad in grads:
                grad.copy_(grad.float() * factor)
