"""The only arithmetic on gradients: the non-finite check, the division by the scale, the norm and the clip.

torch reads and writes every gradient to unscale it, reads it for the norm, and reads and writes it to clip.
Unscaling and clipping are multiplications by numbers that are known before the optimizer runs, so with a
fused optimizer one read, for norm and check together, is enough: the rest is folded into ``grad_scale``.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.torch_model import refusals
from ampsim.torch.gradients.norms import are_small, finite_if_all_are, on_host, sum_of_squares

if TYPE_CHECKING:
    from ampsim.torch.gradients.kernels import Read

T = TypeVar("T")
Groups = dict[tuple[torch.device, torch.dtype], list[Tensor]]

EXACT_CHECK = {"cpu"}
"""Where torch's own check looks at gradients as they are. On CUDA it rounds float64 to float32 first."""
KERNEL_DEVICES = {"cuda"}
SAFE = 3.4e38 * (1 - 1e-5)  # a norm below this bounds every element away from float32's largest, 3.4028e38


def gradients(
    optimizer: Optimizer, *, allow_fp16: bool, sums: bool = False, uncoalesced: list[Tensor] | None = None
) -> Groups:
    """Group an optimizer's gradients by device and dtype; of a sparse one, its values.

    Raises ValueError, with torch's text, for a float16 gradient unless `allow_fp16`. Sparse float16 gradients, and
    with `sums` all sparse ones, are coalesced first: duplicates may overflow when they are added, and the check must
    see the sum. Those that are not go into `uncoalesced` too.
    """
    groups: Groups = {}
    device = dtype = None
    grads: list[Tensor] = []
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            if grad.dtype is not dtype or grad.device != device:  # hashing a device costs more than comparing it
                device, dtype = grad.device, grad.dtype
                if not allow_fp16 and dtype is torch.float16:
                    raise refusals.FLOAT16.error()
                grads = groups.setdefault((device, dtype), [])
            if grad.is_sparse:
                if sums or dtype is torch.float16:
                    param.grad = grad = grad.coalesce()
                elif uncoalesced is not None and not grad.is_coalesced():
                    uncoalesced.append(grad)
                grad = grad._values()  # noqa: SLF001 - uncoalesced values have no public name
            grads.append(grad)
    return groups


def every_gradient(optimizer: Optimizer) -> Iterator[Tensor]:
    """Iterate over an optimizer's gradients; of a sparse one, over its parts."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = param.grad
            if grad is not None:
                yield from (grad._indices(), grad._values()) if grad.is_sparse else (grad,)  # noqa: SLF001


def lay_out_for_kernel(optimizer: Optimizer) -> None:
    """Make every gradient on the CPU lie in memory as its parameter does; refuse what has no such layout.

    torch's fused kernels on the CPU look at no strides: they read and write as many elements as there are, one
    after the other from the first address. Costs nothing per element unless a gradient must be copied.
    """
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = param.grad
            if grad is None or (grad.is_contiguous() and param.is_contiguous()) or not _lies_on_host(grad):
                continue
            param.grad = _laid_out(grad, param)


@torch.no_grad()
def _laid_out(grad: Tensor, param: Tensor) -> Tensor:
    """Return a gradient that lies in memory as its parameter does."""
    if torch._debug_has_internal_overlap(grad) == _OVERLAPS:  # noqa: SLF001
        raise refusals.OVERLAPS.error()
    dense = torch.empty_like(param)  # keeps strides that leave no gaps, and no others
    if dense.stride() != param.stride():
        raise RuntimeError(
            f"a parameter of shape {tuple(param.shape)} with strides {param.stride()} in a fused optimizer on "
            "the CPU: expected one without gaps, for the kernel would write between its elements; make it "
            "contiguous(), or pass fused=False"
        )
    return grad if grad.stride() == dense.stride() else dense.copy_(grad)


_OVERLAPS = 1  # what torch says of memory that overlaps for certain; it gives up on some views that do


def _lies_on_host(grad: Tensor) -> bool:
    return grad.layout is torch.strided and grad.device.type == "cpu"


@torch.no_grad()
def check_and_multiply_(
    groups: Groups, inverse_on: Callable[[torch.device], Tensor], found_on: Callable[[torch.device], Tensor]
) -> None:
    """Do what torch's kernel does: multiply by the inverse scale in place; set found_inf to 1 if any was not finite.

    found_inf has shape (), float32. The check is of the gradients as they come in, that is scaled. On CUDA the kernel
    takes a float64 gradient beyond float32 for inf, and no bfloat16.
    """
    for (device, _), grads in groups.items():
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_on(device), inverse_on(device))


@torch.no_grad()
def multiply_and_check_(
    groups: Groups,
    inverse_on: Callable[[torch.device], Tensor],
    found_on: Callable[[torch.device], Tensor],
    *,
    below_one: bool,
) -> None:
    """Multiply by the inverse scale in place; set found_inf to 1 if any product is not finite in its own dtype.

    That is so of every gradient that was not finite. On CUDA one read and write. On the CPU torch's kernel, and one
    more read where the scale may be below one, so that a finite gradient may have left its format.
    """
    for (device, dtype), grads in groups.items():
        group = {(device, dtype): grads}
        if device.type in KERNEL_DEVICES and _multiplied_on_cuda(grads, inverse_on(device), found_on(device)):
            continue
        if device.type in EXACT_CHECK:
            check_and_multiply_(group, inverse_on, found_on)
        else:
            multiply_(group, inverse_on)
        if below_one or device.type not in EXACT_CHECK:
            check(group, found_on)


@torch.no_grad()
def check(groups: Groups, found_on: Callable[[torch.device], Tensor]) -> None:
    """Set found_inf to 1 if any gradient is not finite; leaves the gradients as they are.

    One read where it can be: on the CPU a finite sum has finite terms. If it is not, it may have
    overflowed, and torch's kernel looks again; it reads and writes, with an inverse scale of 1. Where all gradients
    are small it looks at once: what it writes is in the cache still.
    """
    for (device, dtype), grads in groups.items():
        found = found_on(device)
        if read := _read_on_cuda(grads):
            torch.maximum(found, read.found_inf, out=found)
        elif device.type not in EXACT_CHECK:
            torch.maximum(found, _is_not_finite(largest(grads), dtype), out=found)
        elif are_small(grads) or not (on_host(device, dtype) and math.isfinite(finite_if_all_are(grads))):
            one = torch.ones((), device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, one)


@torch.no_grad()
def check_unscaled(groups: Groups, scale_on: Callable[[torch.device], Tensor]) -> dict[torch.device, Tensor]:
    """Return by device 1.0 if any gradient divided by the scale is not finite in its own dtype, else 0.0; (), float32.

    One read. max|g| / S is finite exactly if every g / S is, because rounding is monotonic. NaN and inf pass
    through.
    """
    flags: dict[torch.device, Tensor] = {}
    for (device, dtype), grads in groups.items():
        scale = scale_on(device)
        if on_host(device, dtype) and math.sqrt(sum_of_squares(grads)) < SAFE * scale.item():
            flag = torch.zeros((), device=device)
        else:
            flag = _is_not_finite(largest(grads) / scale, dtype)
        flags[device] = torch.maximum(flags[device], flag) if device in flags else flag
    return flags


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


@torch.no_grad()
def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`. Only a copy to the host is waited for: it may be used at once."""
    return tensor.to(device, non_blocking=device.type != "cpu")


def norm_and_check(groups: Groups, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unscaled 2-norm of all gradients, and 1.0 if any is not finite once unscaled, else 0.0.

    Both have shape (), float32. One read. On CUDA the kernels take care of range. Elsewhere every gradient is finite
    if the sum of squares is; on the CPU a sum that overflowed, as it may when a gradient exceeds 2^64, is looked at
    again in float64; on other devices, and without Triton, that would be a wait, and the step is skipped although it
    might have been saved.
    """
    reads = [_read_on_cuda(grads, copied(inverse, device)) for (device, _), grads in groups.items()]
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


def _read_on_cuda(grads: list[Tensor], factor: Tensor | None = None) -> "Read | None":
    """Read norm, check and largest gradient by Triton's kernels; None where they cannot be used."""
    return _by_kernels(grads, lambda kernels: kernels.norm_and_flag(grads, factor))


def _multiplied_on_cuda(grads: list[Tensor], factor: Tensor, found: Tensor) -> bool:
    """Multiply and check by Triton's kernels; False where they cannot be used."""

    def multiply(kernels: Any) -> bool:
        return all(map(kernels.is_dense, grads)) and kernels.multiply_and_flag(grads, factor, found) is None

    return bool(_by_kernels(grads, multiply))


def _by_kernels(grads: list[Tensor], work: Callable[[Any], T]) -> T | None:
    if grads[0].device.type not in KERNEL_DEVICES:
        return None
    from ampsim._triton import NewAddressesError
    from ampsim.torch.gradients import kernels  # imports Triton, which nothing else needs

    try:
        return work(kernels) if kernels.takes(grads) else None
    except NewAddressesError:  # a graph's own gradients: torch's kernels take addresses by value
        return None


def _combined(reads: list["Read"], home: torch.device) -> tuple[Tensor, Tensor]:
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
def multiply_(groups: Groups, factor_on: Callable[[torch.device], Tensor]) -> None:
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
