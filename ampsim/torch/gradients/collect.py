"""An optimizer's gradients: grouped for arithmetic, kept for a stream, and laid out as its fused kernel reads them."""

from collections.abc import Iterator
from operator import attrgetter, length_hint

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.torch_model import refusals

Groups = dict[tuple[torch.device, torch.dtype], list[Tensor]]


class PlainGroups(Groups):
    """Gradients known to be of one device and dtype, no subclasses, and contiguous."""


_GRAD, _DTYPE, _IS_CPU = map(attrgetter, ("grad", "dtype", "is_cpu"))
FEW = 4  # parameters, below which a look at each costs less than a look at all
_SEPARATE, _OVERLAPS = 0, 1  # what torch says of memory for certain; on other views it gives up


def gradients(
    optimizer: Optimizer,
    *,
    allow_fp16: bool,
    sums: bool = False,
    uncoalesced: list[Tensor] | None = None,
) -> Groups:
    """Group an optimizer's gradients by device and dtype; of a sparse one, its values.

    Raises ValueError, with torch's text, for a float16 gradient unless `allow_fp16`. Sparse float16 gradients, and
    with `sums` all sparse ones, are coalesced first: duplicates may overflow when they are added, and the check must
    see the sum. Those that are not go into `uncoalesced` too.
    """
    try:
        groups = _all_plain(optimizer) or _any_kind(optimizer, sums=sums, uncoalesced=uncoalesced)
    except AttributeError:
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            if not isinstance(param, Tensor):
                raise refusals.no_parameter(param).error() from None
        raise
    for _, dtype in () if allow_fp16 else groups:
        if dtype is torch.float16:
            raise refusals.FLOAT16.error()
    return groups


def _any_kind(optimizer: Optimizer, *, sums: bool, uncoalesced: list[Tensor] | None) -> Groups:
    groups: Groups = {}
    device = dtype = None
    grads: list[Tensor] = []
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            if (
                grad.dtype is not dtype or grad.device != device
            ):  # hashing a device costs more than comparing it
                device, dtype = grad.device, grad.dtype
                grads = groups.setdefault((device, dtype), [])
            if grad.is_sparse:
                if sums or dtype is torch.float16:
                    param.grad = grad = grad.coalesce()
                elif uncoalesced is not None and not grad.is_coalesced():
                    uncoalesced.append(grad)
                grad = grad._values()  # noqa: SLF001 - uncoalesced values have no public name
            grads.append(grad)
    return groups


def _all_plain(optimizer: Optimizer) -> PlainGroups | None:
    """Group gradients that are plain without a look at each in Python; None of others, or of few."""
    lists = [group["params"] for group in optimizer.param_groups]
    if len(lists) == 1 and length_hint(lists[0], FEW) < FEW:  # a generator's has none
        return None
    grads = [grad for params in lists for param in params if (grad := param.grad) is not None]
    return PlainGroups({(grads[0].device, grads[0].dtype): grads}) if are_plain(grads) else None


def are_plain(grads: list[Tensor]) -> bool:
    """Return whether gradients, at least one, are contiguous plain tensors of one device and dtype."""
    if {*map(type, grads)} != {Tensor} or {*map(_DTYPE, grads)} != {grads[0].dtype}:
        return False
    device = grads[0].device  # of a CPU torch says -1, and of others without a number
    alike = (
        all(map(_IS_CPU, grads))
        if device.type == "cpu"
        else {*map(Tensor.get_device, grads)} == {device.index}
    )
    try:
        return alike and all(map(Tensor.is_contiguous, grads))  # as no sparse COO one is
    except RuntimeError:  # of other layouts
        return False


def check_separate(groups: Groups) -> None:
    """Raise for gradients whose elements share memory, which an in-place division would divide repeatedly."""
    for grads in groups.values():
        if not all(map(Tensor.is_contiguous, grads)) and any(map(_overlaps, grads)):
            raise refusals.OVERLAPS.error()


def _overlaps(grad: Tensor) -> bool:
    """Return whether two elements of a gradient share memory."""
    known = torch._debug_has_internal_overlap(grad)  # noqa: SLF001
    if known in (_SEPARATE, _OVERLAPS):
        return known == _OVERLAPS
    reach, places = 0, np.zeros((), np.int64)
    for stride, size in sorted(zip(grad.stride(), grad.shape, strict=True)):
        if (
            size > 1 and stride <= reach
        ):  # not each row behind the one before, as of a slice: count the places
            break
        reach += stride * (size - 1)
    else:
        return False
    for stride, size in zip(grad.stride(), grad.shape, strict=True):
        places = places[..., None] + stride * np.arange(size)
    return len(np.unique(places)) < places.size


def every_gradient(optimizer: Optimizer) -> Iterator[Tensor]:
    """Iterate over an optimizer's gradients; of a sparse one, over its parts."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = param.grad
            if grad is not None:
                yield from (grad._indices(), grad._values()) if grad.is_sparse else (grad,)  # noqa: SLF001


def lay_out_for_kernel(optimizer: Optimizer, *, are_plain: bool = False) -> None:
    """Give each gradient on the CPU the memory layout of its parameter; raise if that is impossible.

    torch's fused kernels on the CPU ignore strides: they read and write all elements consecutively from the first
    address. Costs nothing per element unless a gradient must be copied. `are_plain`: the
    gradients are known to be contiguous.
    """
    for group in optimizer.param_groups:
        params = group["params"]
        if all(map(Tensor.is_contiguous, params)) and (
            are_plain or all(grad is None or grad.is_contiguous() for grad in map(_GRAD, params))
        ):
            continue
        for param, grad in zip(params, map(_GRAD, params), strict=True):
            contiguous = grad is None or (grad.is_contiguous() and param.is_contiguous())
            if not contiguous and grad.layout is torch.strided and grad.device.type == "cpu":
                param.grad = _laid_out(grad, param)


@torch.no_grad()
def _laid_out(grad: Tensor, param: Tensor) -> Tensor:
    """Return a gradient with the memory layout of its parameter."""
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
