"""An optimizer's gradients: grouped for arithmetic, and laid out as a fused kernel reads them."""

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ampsim.core import refusals


class Groups(dict[tuple[torch.device, torch.dtype], list[Tensor]]):
    """Gradients by device and dtype; of a sparse gradient, its values."""

    plain: list[Tensor] | None = None
    """All gradients, if they are contiguous tensors of one device and dtype, no subclasses."""


_DTYPE, _IS_CPU = map(attrgetter, ("dtype", "is_cpu"))
_OVERLAPS = 1  # torch's answer for memory that surely overlaps


def parameters(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups of an optimizer."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def gradients(optimizer: Any) -> list[Tensor]:
    """Return an optimizer's gradients, as they are."""
    return [grad for p in parameters(optimizer) if (grad := p.grad) is not None]


def group(params: list[Any], *, allow_fp16: bool, sums: bool = False) -> Groups:
    """Group the gradients of parameters by device and dtype.

    Sparse float16 gradients, and with `sums` all sparse ones, are coalesced first, because
    duplicates may overflow when they are added.

    Args:
        params: Parameters of an optimizer.
        allow_fp16: Whether to accept float16 gradients.
        sums: Whether to coalesce sparse gradients of every dtype.

    Returns:
        The gradients by device and dtype.

    Raises:
        AssertionError: With torch's text, if a parameter is no tensor.
        ValueError: With torch's text, for a float16 gradient unless `allow_fp16`.
    """
    try:
        grads = [grad for param in params if (grad := param.grad) is not None]
    except AttributeError:
        for param in params:
            if not isinstance(param, Tensor):
                raise refusals.no_parameter(param).error() from None
        raise
    groups = Groups()
    if _are_plain(grads):
        groups[grads[0].device, grads[0].dtype] = groups.plain = grads
    else:
        for param in params:
            if param.grad is not None:
                _add(groups, param, sums=sums)
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
    if device.type == "cpu":
        # torch gives the CPU the number -1, as it does to devices without a number.
        is_one_device = all(map(_IS_CPU, grads))
    else:
        is_one_device = {*map(Tensor.get_device, grads)} == {device.index}
    try:
        return is_one_device and all(map(Tensor.is_contiguous, grads))
    except RuntimeError:  # of a sparse layout
        return False


def _add(groups: Groups, param: Tensor, *, sums: bool) -> None:
    grad: Any = param.grad
    part = groups.setdefault((grad.device, grad.dtype), [])
    if grad.is_sparse:
        if sums or grad.dtype is torch.float16:
            param.grad = grad = grad.coalesce()
        grad = grad._values()  # noqa: SLF001
    part.append(grad)


def lay_out_for_kernel(optimizer: Any, plain: list[Tensor] | None = None) -> None:
    """Give each gradient on the CPU the memory layout of its parameter.

    torch's fused kernels on the CPU ignore strides: they read and write all elements in a row from
    the first address.

    Args:
        optimizer: Optimizer that is about to step.
        plain: `Groups.plain` of its gradients.

    Raises:
        RuntimeError: If the elements of a gradient overlap, or if a parameter has gaps.
    """
    params = parameters(optimizer)
    grads = gradients(optimizer) if plain is None else []
    if all(map(Tensor.is_contiguous, [*params, *grads])):
        return
    for param in params:
        grad = param.grad
        if grad is None or not grad.is_cpu or grad.layout is not torch.strided:
            continue
        if not (grad.is_contiguous() and param.is_contiguous()):
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
