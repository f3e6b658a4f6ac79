"""Measurements of gradients on their device, without waiting for it.

The CPU's values are read at once, as Python numbers. The values of other devices are copied to the
host asynchronously: a `Fetched` is on its way, and is waited for when the record is built.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.probe.async_host_copy import Fetched
from ampsim.probe.counting import DTYPES, counts_of_each

Kind = tuple[torch.device, torch.dtype]
Groups = dict[Kind, tuple[list[Tensor], list[Tensor]]]  # parameters and their gradients

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TINY = 1e-15  # a smaller norm may have lost squares that underflow in float32
_SMALL = 4096  # elements per tensor, on average; measured


class Norms(NamedTuple):
    """2-norms of gradients of one device and dtype, still scaled.

    Attributes:
        params: Parameters, one per norm; [] if the one norm is that of all gradients together, and
            is finite.
        norms: list[float], or a Fetched of float64.
    """

    params: list[Tensor]
    norms: Any


class Counts(NamedTuple):
    """Exponent counts of unscaled gradients.

    Attributes:
        params: Parameters, one per row.
        counts: Shape (len(params), 281), int64; see `ampsim.probe.counting`.
    """

    params: list[Tensor]
    counts: Fetched


def read(tensor: Tensor) -> Any:
    """Return the values of a tensor as a number or a list; of a device, a `Fetched`."""
    return tensor.tolist() if tensor.is_cpu else Fetched(tensor.detach())


def on_host(value: Any) -> Any:
    """Return the values that `read` returned or announced; waits for the device."""
    return value.wait().tolist() if isinstance(value, Fetched) else value


def parameters_of(optimizers: list[Optimizer]) -> list[Tensor]:
    """Return the parameters of the optimizers."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [param for group in groups for param in group["params"]]


def gradients_of(optimizer: Optimizer) -> Groups:
    """Return the gradients of an optimizer's parameters; of sharded ones the local part."""
    groups: Groups = {}
    for param in parameters_of([optimizer]):
        grad = param.grad
        if grad is None:
            continue
        if (
            type(grad) is not Tensor
            or grad.layout is not torch.strided
            or grad.is_complex()
        ):
            grad = _plain(grad)
        kind = grad.device, grad.dtype
        if kind not in groups:
            groups[kind] = [], []
        groups[kind][0].append(param)
        groups[kind][1].append(grad)
    return groups


def norms_of(groups: Groups) -> list[Norms]:
    """Return the 2-norms of gradients; a norm is inf or NaN if an element is."""
    norms = []
    for (device, dtype), (params, grads) in groups.items():
        if device.type == "cpu":
            norms.append(_norms_on_cpu(params, grads, dtype))
        else:
            # Reading the gradients takes longer than summing the squares in float64.
            norms.append(Norms(params, read(_each(grads, torch.float64))))
    return norms


def _norms_on_cpu(
    params: list[Tensor], grads: list[Tensor], dtype: torch.dtype
) -> Norms:
    """Return the norms of gradients of one dtype on the CPU.

    float64 takes four times as long as float32 here, so squares are summed in float32, and again in
    float64 if a sum overflows or underflows. For small tensors, a call takes longer than copying:
    they are joined to one.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if sum(map(torch.numel, grads)) < _SMALL * len(grads):
        joined = torch._C._nn.flatten_dense_tensors(grads)  # noqa: SLF001
        norm = torch.linalg.vector_norm(joined, dtype=wide).item()
        if _TINY < norm < math.inf:
            return Norms([], [norm])
    norms = _each(grads, wide).tolist()
    again = [place for place, norm in enumerate(norms) if not _TINY < norm < math.inf]
    if again:
        exact = _each([grads[place] for place in again], torch.float64).tolist()
        for place, norm in zip(again, exact, strict=True):
            norms[place] = norm
    return Norms(params, norms)


def _each(grads: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack(torch._foreach_norm(grads, 2, dtype))  # noqa: SLF001


def exponents_of(
    groups: Groups, scale: Tensor, is_sampled: Callable[[Tensor], bool]
) -> list[Counts]:
    """Return exponent counts of unscaled gradients of the sampled parameters; writes no gradient."""
    counts = []
    for (device, dtype), (params, grads) in groups.items():
        divisor = scale.to(device)
        pairs = [
            (param, grad.float() / divisor)
            for param, grad in zip(params, grads, strict=True)
            if dtype in DTYPES and grad.numel() and is_sampled(param)
        ]
        if pairs:
            table = counts_of_each([values for _, values in pairs])
            counts.append(Counts([param for param, _ in pairs], Fetched(table)))
    return counts


def checksums(params: list[Tensor]) -> list[Any]:
    """Return the sum over the bits of each parameter, by device; see `read`."""
    sums: dict[torch.device, list[Tensor]] = {}
    for param in map(_plain, params):
        bits = param.view(_INTEGERS[param.element_size()])
        sums.setdefault(param.device, []).append(bits.sum(dtype=torch.int64))
    return [read(torch.stack(parts)) for parts in sums.values()]


def _plain(tensor: Any) -> Tensor:
    """Return the local, dense values of a tensor; of complex tensors both parts."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    values: Tensor = local.detach()
    dense = values.coalesce().values() if values.is_sparse else values
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
