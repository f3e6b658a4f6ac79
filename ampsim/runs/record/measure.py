"""Measurements of gradients on their device, without waiting for it.

The CPU's values are read at once, as Python numbers. The values of other devices are copied to the host
asynchronously: a `Fetched` is on its way, and is waited for when the record is built.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.probe.async_host_copy import Fetched
from ampsim.probe.counting import DTYPES, counts_of_each
from ampsim.runs.record.run_file import BINS, pack_counts

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TINY = 1e-15  # a smaller norm may have lost squares that underflow in float32
_SMALL = 4096  # elements per tensor, on average; measured


class Norms(NamedTuple):
    """2-norms of gradients of one device and dtype, still scaled.

    Attributes:
        params: Parameters, one per norm; [] if the one norm is that of all gradients together, and is finite.
        norms: list[float], or a Fetched of float64.
        scale: float, or a Fetched.
    """

    params: list[Tensor]
    norms: Any
    scale: Any


class Counts(NamedTuple):
    """Exponent counts of unscaled gradients."""

    params: list[Tensor]
    counts: Fetched  # (len(params), 281), int64


def read(tensor: Tensor) -> Any:
    """Return the values of a tensor as a number or a list; of a device, a `Fetched`."""
    if tensor.device.type == "cpu":
        return tensor.tolist()
    return Fetched([tensor.detach()])


def on_host(value: Any) -> Any:
    """Return the values that `read` returned or announced; waits for the device."""
    return value.wait()[0].tolist() if isinstance(value, Fetched) else value


def parameters_of(optimizers: list[Optimizer]) -> list[Tensor]:
    """Return the parameters of the optimizers."""
    return [
        param
        for optimizer in optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    ]


class Gradients:
    """The gradients of an optimizer's parameters, by device and dtype; of sharded ones the local part."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    grad = _plain(param.grad)
                    params, grads = self.groups[grad.device, grad.dtype]
                    params.append(param)
                    grads.append(grad)

    def norms(self, scale: Tensor) -> list[Norms]:
        """Return the 2-norms of the gradients; a norm is inf or NaN if an element is."""
        scale_read = read(scale)
        norms = []
        for (device, dtype), (params, grads) in self.groups.items():
            if device.type == "cpu":
                norms.append(Norms(*_norms_on_cpu(params, grads, dtype), scale_read))
            else:
                # Reading the gradients takes longer than summing the squares in float64.
                stacked = torch.stack(torch._foreach_norm(grads, 2, torch.float64))  # noqa: SLF001
                norms.append(Norms(params, read(stacked), scale_read))
        return norms

    def exponents(self, scale: Tensor, is_sampled: Callable[[Tensor], bool]) -> list[Counts]:
        """Return exponent counts of unscaled gradients of the sampled parameters; writes no gradient."""
        counts = []
        for (device, dtype), (params, grads) in self.groups.items():
            pairs = [
                (param, grad.float() / scale.to(device))
                for param, grad in zip(params, grads, strict=True)
                if dtype in DTYPES and grad.numel() and is_sampled(param)
            ]
            if pairs:
                chosen, values = zip(*pairs, strict=True)
                counts.append(Counts([*chosen], Fetched([counts_of_each([*values])])))
        return counts


def _norms_on_cpu(
    params: list[Tensor], grads: list[Tensor], dtype: torch.dtype
) -> tuple[list[Tensor], list[float]]:
    """Return `Norms.params` and `Norms.norms`.

    float64 takes four times as long as float32 on the CPU, so squares are summed in float32, and again in float64 if a
    sum overflows or underflows. For small tensors, a call takes longer than copying: they are joined to one.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if sum(map(torch.numel, grads)) < _SMALL * len(grads):
        joined = torch._C._nn.flatten_dense_tensors(grads)  # noqa: SLF001
        norm = torch.linalg.vector_norm(joined, dtype=wide).item()
        if _TINY < norm < math.inf:
            return [], [norm]
    norms = torch.stack(torch._foreach_norm(grads, 2, wide)).tolist()  # noqa: SLF001
    again = [place for place, norm in enumerate(norms) if not _TINY < norm < math.inf]
    if again and wide != torch.float64:
        exact = torch._foreach_norm([grads[place] for place in again], 2, torch.float64)  # noqa: SLF001
        for place, norm in zip(again, exact, strict=True):
            norms[place] = norm.item()
    return params, norms


def pack(counts: Counts) -> list[dict[str, Any]]:
    """Return the packed histogram of each parameter; waits for the device."""
    rows = counts.counts.wait()[0].numpy()
    return [pack_counts(row[:BINS]) for row in rows]


def checksums(params: list[Tensor]) -> list[Any]:
    """Return one checksum over the bits of each parameter, by device; see `read`."""
    sums: dict[torch.device, list[Tensor]] = defaultdict(list)
    for param in map(_plain, params):
        bits = param.detach().view(_INTEGERS[param.element_size()])
        sums[param.device].append(bits.sum(dtype=torch.int64))
    return [read(torch.stack(parts)) for parts in sums.values()]


def _plain(tensor: Any) -> Tensor:
    """Return the local, dense values of a tensor; of complex tensors both parts."""
    if type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.requires_grad:
        return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    values: Tensor = local.detach()
    dense = values.coalesce().values() if values.is_sparse else values
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
