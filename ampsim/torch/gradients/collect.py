"""An optimizer's gradients: grouped for arithmetic, and laid out as a fused kernel reads them."""

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core import refusals

Groups = dict[tuple[torch.device, torch.dtype], list[Tensor]]


class PlainGroups(Groups):
    """Gradients known to be of one device and dtype, no subclasses, and contiguous."""


_GRAD, _DTYPE, _IS_CPU = map(attrgetter, ("grad", "dtype", "is_cpu"))
_OVERLAPS = 1  # torch's answer for memory that surely overlaps


def gradients(
    optimizer: Optimizer,
    *,
    allow_fp16: bool,
    sums: bool = False,
    uncoalesced: list[Tensor] | None = None,
) -> Groups:
    """Group an optimizer's gradients by device and dtype; of a sparse one, its values.

    Sparse float16 gradients, and with `sums` all sparse ones, are coalesced first, because
    duplicates may overflow when they are added.

    Args:
        optimizer: Optimizer whose gradients to group.
        allow_fp16: Whether to accept float16 gradients.
        sums: Whether to coalesce sparse gradients of every dtype.
        uncoalesced: List to which sparse gradients that are not coalesced are added.

    Returns:
        The gradients by device and dtype.

    Raises:
        AssertionError: With torch's text, if a parameter is no tensor.
        ValueError: With torch's text, for a float16 gradient unless `allow_fp16`.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    try:
        grads = [grad for param in params if (grad := param.grad) is not None]
    except AttributeError:
        for param in params:
            if not isinstance(param, Tensor):
                raise refusals.no_parameter(param).error() from None
        raise
    if _are_plain(grads):
        groups: Groups = PlainGroups({(grads[0].device, grads[0].dtype): grads})
    else:
        groups = _group(params, sums=sums, uncoalesced=uncoalesced)
    if not allow_fp16 and torch.float16 in {dtype for _, dtype in groups}:
        raise refusals.FLOAT16.error()
    return groups


def _are_plain(grads: list[Any]) -> bool:
    """Return whether there are gradients, all contiguous plain tensors of one device and dtype.

    All loops run in C: a look at each gradient in Python would take longer than torch's kernel.
    """
    if {*map(type, grads)} != {Tensor} or {*map(_DTYPE, grads)} != {grads[0].dtype}:
        return False
    device = grads[0].device
    if (
        device.type == "cpu"
    ):  # torch gives it the number -1, as devices without a number
        is_one_device = all(map(_IS_CPU, grads))
    else:
        is_one_device = {*map(Tensor.get_device, grads)} == {device.index}
    try:
        return is_one_device and all(map(Tensor.is_contiguous, grads))
    except RuntimeError:  # of a sparse layout
        return False


def _group(
    params: list[Any], *, sums: bool, uncoalesced: list[Tensor] | None
) -> Groups:
    groups: Groups = {}
    for param in params:
        grad = param.grad
        if grad is None:
            continue
        part = groups.setdefault((grad.device, grad.dtype), [])
        if grad.is_sparse:
            if sums or grad.dtype is torch.float16:
                param.grad = grad = grad.coalesce()
            elif uncoalesced is not None and not grad.is_coalesced():
                uncoalesced.append(grad)
            grad = grad._values()  # noqa: SLF001
        part.append(grad)
    return groups


def lay_out_for_kernel(optimizer: Optimizer, *, are_plain: bool = False) -> None:
    """Give each gradient on the CPU the memory layout of its parameter.

    torch's fused kernels on the CPU ignore strides: they read and write all elements in a row from
    the first address.

    Args:
        optimizer: Optimizer that is about to step.
        are_plain: Whether the gradients are known to be contiguous.

    Raises:
        RuntimeError: If the elements of a gradient overlap, or if a parameter has gaps.
    """
    for group in optimizer.param_groups:
        params = group["params"]
        grads = (
            []
            if are_plain
            else [grad for grad in map(_GRAD, params) if grad is not None]
        )
        if all(map(Tensor.is_contiguous, [*params, *grads])):
            continue
        for param, grad in zip(params, map(_GRAD, params), strict=True):
            contiguous = grad is None or (
                grad.is_contiguous() and param.is_contiguous()
            )
            if (
                not contiguous
                and grad.layout is torch.strided
                and grad.device.type == "cpu"
            ):
                param.grad = _laid_out(grad, param)


@torch.no_grad()
def _laid_out(grad: Tensor, param: Tensor) -> Tensor:
    """Return a gradient with the memory layout of its parameter."""
    if torch._debug_has_internal_overlap(grad) == _OVERLAPS:  # noqa: SLF001
        raise refusals.OVERLAPS.error()
    dense = torch.empty_like(param)  # keeps strides that leave no gaps, and no others
    if dense.stride() != param.stride():
        raise RuntimeError(
            f"a parameter of shape {tuple(param.shape)} with strides {param.stride()} in a fused "
            "optimizer on the CPU: expected one without gaps, for the kernel would write between "
            "its elements; make it contiguous(), or pass fused=False"
        )
    return grad if grad.stride() == dense.stride() else dense.copy_(grad)
