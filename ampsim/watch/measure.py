"""Measurements of gradients on their device, without waiting for it."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.probe.counting import DTYPES, counts_of_each

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Norms(NamedTuple):
    """2-norms of gradients of one device and dtype, still scaled."""

    names: list[str]
    norms: Tensor  # (len(names),), float64
    scale: Tensor  # (), float32, the loss scale of the gradients


class Counts(NamedTuple):
    """Exponent counts of unscaled gradients."""

    names: list[str]
    counts: Tensor  # (len(names), 281), int64


def gradients_of(optimizer: Optimizer, names: Mapping[Tensor, str]) -> list[tuple[str, Tensor]]:
    """Return names and plain gradients of an optimizer's parameters; the local part of sharded ones."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [
        (names.get(param, f"parameter {number}"), _plain(param.grad))
        for number, param in enumerate(params)
        if param.grad is not None
    ]


def norms(grads: list[tuple[str, Tensor]], scale: Tensor) -> list[Norms]:
    """Return the 2-norm of each gradient, one `Norms` per device and dtype.

    A norm is inf or NaN if an element is. On CUDA squares are summed in float64, as the read dominates the time. On the
    CPU, where float64 takes four times as long, squares are summed in float32, and again in float64 if the sum
    overflows or underflows.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[str, Tensor]]] = {}
    for name, grad in grads:
        kinds.setdefault((grad.device, grad.dtype), []).append((name, grad))
    found = []
    for (device, dtype), pairs in kinds.items():
        names, tensors = [name for name, _ in pairs], [grad for _, grad in pairs]
        wide = device.type != "cpu" or dtype == torch.float64
        each = torch.stack(
            torch._foreach_norm(tensors, 2, torch.float64 if wide else torch.float32)  # noqa: SLF001
        ).double()
        if not wide and (
            again := [i for i, norm in enumerate(each.tolist()) if not 1e-15 < norm < math.inf]
        ):
            each[again] = torch.stack(
                torch._foreach_norm([tensors[i] for i in again], 2, torch.float64)  # noqa: SLF001
            )
        found.append(Norms(names, each, scale))
    return found


def exponents(grads: list[tuple[str, Tensor]], scale: Tensor) -> list[Counts]:
    """Return exponent counts of unscaled gradients, without writing the gradients."""
    devices: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, grad in grads:
        if grad.dtype in DTYPES and grad.numel():
            devices.setdefault(grad.device, []).append((name, grad.float() / scale.to(grad.device)))
    found = []
    for pairs in devices.values():
        names, values = [name for name, _ in pairs], [value for _, value in pairs]
        found.append(Counts(names, counts_of_each(values)))
    return found


def fingerprint(params: list[Tensor]) -> list[Tensor]:
    """Return one int64 checksum per device over the bits of all parameters."""
    devices: dict[torch.device, list[Tensor]] = {}
    for param in map(_plain, params):
        whole = param.view(_INTEGERS[param.element_size()])
        devices.setdefault(param.device, []).append(whole.sum(dtype=torch.int64))
    return [torch.stack(sums) for sums in devices.values()]


def _plain(tensor: Any) -> Tensor:
    """Return the local, dense values of a tensor; of complex tensors both parts."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    values: Tensor = local.detach()
    dense = values.coalesce().values() if values.is_sparse else values
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
