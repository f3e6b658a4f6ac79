"""Adam and AdamW over all tensors of an optimizer, in eight words per element and two launches of Triton kernels.

`check` reads the gradients once: norm, non-finite check, and the divisor that unscales and clips; 1 word. `step`
reads gradient, parameter and both moments, and writes all but the gradient; 7 words, or none if the check found inf or
NaN. torch moves 12: its `unscale_` and clip write the gradients, which are read for the norm between, and so does its
fused step.

The map of tiles depends on sizes alone, and is made once per model. Addresses are 8 bytes per tensor.

They have been run in Triton's interpreter, and compiled for sm_80, sm_90 and sm_100 (`experiments.compiled_kernels`);
not yet on a GPU.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ampsim._triton import NewAddressesError, is_dense, runs, tl
from ampsim.core.machine import Rule
from ampsim.torch.dynamo import leave_alone
from ampsim.torch.gradients import kernels, kernels_adam
from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.kernels import DTYPES, Numbers, Sent

PART = 1024  # elements of a tile that one program of `adam` steps, 8 per thread
STEP_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}  # what is fused is written as fma
PROGRAMS = 2  # of `check` per multiprocessor: as many as its registers let run at once
PARTS = 1024  # programs of `check` at most; the last one reads what all have found

__all__ = [
    "Checked",
    "Hyperparameters",
    "NewAddressesError",
    "Numbers",
    "Tensors",
    "Update",
    "addresses_of",
    "available",
    "check",
    "step",
    "why_not_check",
    "why_not_step",
]

_PLAIN = (Tensor, nn.Parameter)
_KIND = "a tensor is on another device, or a subclass of Tensor: expected plain ones on one device"
_DTYPE = "dtypes: expected parameters and state in float32, gradients in one of float32, float16 and bfloat16"
_STRIDES = "strides: expected no gaps, and gradient and state to lie in memory as their parameter does"


class Checked(NamedTuple):
    """The result of one read of all gradients; each shape (), float32, on their device."""

    norm: Tensor  # 2-norm of g / scale; inf if it exceeds float32, as of finite gradients it may
    found_inf: Tensor  # 1.0 if any g / scale is inf or NaN in float32, or the bound is no norm; else 0.0
    divisor: Tensor  # g / divisor is unscaled and clipped
    following: tuple[Tensor, Tensor] | None  # scale and growth tracker (int32) after an update by this flag alone


class Update(NamedTuple):
    """The state that an update would change, on the gradients' device, and the rule it would change it by."""

    scale: Tensor  # (), float32
    growth_tracker: Tensor  # (), int32
    rule: Rule  # with the growth test ">="


class Tensors(NamedTuple):
    """The tensors of one parameter group on one device, each list in the parameters' order, none with gaps."""

    grads: Sequence[Tensor]  # of one dtype: float32, float16 or bfloat16
    params: Sequence[Tensor]  # float32, as all that follow
    exp_avgs: Sequence[Tensor]
    exp_avg_sqs: Sequence[Tensor]
    steps: Sequence[Tensor]  # each of one element


class Hyperparameters(NamedTuple):
    """The numbers of one parameter group."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    maximize: bool


@functools.lru_cache(maxsize=64)  # of numbers: keeps no tensor alive; 8 bytes per tensor
def _table(device: torch.device, *columns: Numbers) -> Sent:
    return kernels.send(np.stack([*map(_column, columns)], axis=1), device)


@functools.lru_cache(maxsize=64)
def _column(numbers: Numbers) -> "np.ndarray[Any, Any]":
    return np.array(numbers, dtype=np.int64)


def addresses_of(lists: Sequence[Sequence[Tensor]]) -> list[Numbers]:
    """Return the elements of each tensor of the first list, and the addresses in the lists, without the counts."""
    return [tuple(map(Tensor.numel, lists[0])), *(tuple(map(Tensor.data_ptr, tensors)) for tensors in lists[:4])]


def _powers(beta: float, counts: Tensor) -> Tensor:
    """Return a power per tensor, float32: on CUDA as torch's own kernel rounds it, on the CPU to nearest."""
    beta = float(np.float32(beta))
    wide = counts if counts.is_cuda else counts.double()
    return torch.pow(beta, wide).float()


def _tables(device: torch.device, addresses: list[Numbers]) -> tuple[Tensor, Tensor]:
    """Return the tiles of what `addresses_of` returned, and of each tensor its row."""
    return kernels.tiles_on(device, addresses[0]), kernels.arrived(_table(device, *addresses))


def check(
    grads: Sequence[Tensor], scale: Tensor, max_norm: float | Tensor | None = None, update: Update | None = None
) -> Checked:
    """Return norm, flag and divisor of dense gradients of one device and dtype, float32, float16 or bfloat16.

    `scale` has shape (), float32. `max_norm` is what to clip to: a number of at least 0, a tensor like `scale`, whose
    NaN or negative number sets the flag, or None. One launch, which waits for nothing. In the capture of a CUDA graph
    the gradients must lie where they lay in a call before it: NewAddressesError otherwise.
    """
    device = scale.device
    with torch.cuda.device_of(scale):  # type: ignore[no-untyped-call] # Triton launches on the current one
        tiles, table = _tables(grads[0].device, addresses_of([grads]))
        programs = max(1, min(len(tiles), PARTS, PROGRAMS * _multiprocessors(device)))
        partials = torch.empty(2 * programs, dtype=torch.float64, device=device)
        done = torch.zeros(1, dtype=torch.int32, device=device)
        found = torch.empty(4, dtype=torch.float32, device=device)
        counted = torch.empty((), dtype=torch.int32, device=device)
        bound = "none" if max_norm is None else "tensor" if isinstance(max_norm, Tensor) else "number"
        kernels_adam.check[(programs,)](
            tiles, len(tiles), table, partials, done, scale, 0.0 if max_norm is None else max_norm, found,
            *_state(update), counted, getattr(tl, DTYPES[grads[0].dtype]), bound, PARTS, kernels.BLOCK,
            *_constants(update), **kernels.OPTIONS
        )  # fmt: skip
    norm, flag, divisor, following = found.unbind()
    return Checked(norm, flag, divisor, (following, counted) if update else None)


def _state(update: Update | None) -> tuple[Tensor | None, Tensor | None, int]:
    if update is None:
        return None, None, 0
    return update.scale, update.growth_tracker, min(update.rule.growth_interval, 2**31)


def _constants(update: Update | None) -> tuple[float | None, ...]:
    if update is None:
        return (None,) * 4
    rule = update.rule
    return rule.growth_factor, rule.backoff_factor, rule.min_scale, rule.max_scale


def step(
    tensors: Tensors,
    found_inf: Tensor,
    divisor: Tensor | None,
    numbers: Hyperparameters,
    addresses: list[Numbers] | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """Step parameters by gradients that are divided first, and count the step; do nothing if `found_inf` is 1.

    Gradients and moments lie in memory as their parameters do. `found_inf` and `divisor` have shape (), float32;
    `addresses` is what `addresses_of` returns, and `counts` what the last call did, shape (tensors,), where they are
    known. One launch, and some small ones beside it: for the counts and the corrections. In a capture as `check`.

    Returns:
        The counts after the step, which the next call writes.
    """
    grads = tensors.grads
    with torch.cuda.device_of(found_inf):  # type: ignore[no-untyped-call]
        tiles, table = _tables(grads[0].device, addresses or addresses_of(tensors))
        clean = 1.0 - found_inf
        torch._foreach_add_([*tensors.steps], clean)
        counts = torch.stack([*tensors.steps]).reshape(-1) if counts is None else counts.add_(clean)
        if not len(tiles):
            return counts
        lr, beta1, beta2, eps, decay = map(float, numbers[:5])
        dtype, decays = getattr(tl, DTYPES[grads[0].dtype]), decay != 0.0
        kernels_adam.adam[(len(tiles) * (kernels.BLOCK // PART),)](
            tiles, table, _powers(beta1, counts), _powers(beta2, counts), found_inf, divisor, lr, beta1, beta2, eps,
            decay, dtype, decays, numbers.decoupled, numbers.maximize, kernels.BLOCK, PART, **STEP_OPTIONS
        )  # fmt: skip
    return counts


def available(device: torch.device) -> bool:
    """Tell whether the kernels run on `device`."""
    return runs(_try, device)


def _try(grads: list[Tensor]) -> None:
    one = torch.ones((), device=grads[0].device)
    checked = check(grads, one, 1.0)
    param, exp_avg, exp_avg_sq = ([torch.zeros_like(grads[0])] for _ in range(3))
    tensors = Tensors(grads, param, exp_avg, exp_avg_sq, steps=[torch.zeros_like(one)])
    numbers = Hyperparameters(1e-3, 0.9, 0.999, 1e-8, 0.0, decoupled=True, maximize=False)
    step(tensors, checked.found_inf, checked.divisor, numbers)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def why_not_check(groups: Groups) -> str | None:
    """Say why `check` cannot read gradients, grouped by device and dtype; None if it can."""
    ((device, dtype), grads), *more = groups.items()
    if more:
        return _DTYPE if all(each == device for (each, _), _ in more) else _KIND
    if dtype not in DTYPES:
        return _DTYPE
    if {*map(type, grads)} != {Tensor}:
        return _KIND
    return None if all(map(Tensor.is_contiguous, grads)) or all(map(is_dense, grads)) else _STRIDES


def why_not_step(tensors: Tensors) -> str | None:
    """Say why `step` cannot step these tensors; None if it can."""
    grads, *others = tensors
    device, dtype = grads[0].device, grads[0].dtype
    if not all(type(each) in _PLAIN and each.device == device for part in tensors for each in part):
        return _KIND
    if dtype not in DTYPES or not (_are(dtype, grads) and _are(torch.float32, *others)):
        return _DTYPE
    lie = map(_lie_alike, tensors.params, grads, tensors.exp_avgs, tensors.exp_avg_sqs)
    return None if all(lie) else _STRIDES


def _are(dtype: torch.dtype, *lists: Sequence[Tensor]) -> bool:
    return all(tensor.dtype is dtype for tensors in lists for tensor in tensors)


def _lie_alike(param: Tensor, *others: Tensor) -> bool:
    """Tell whether all lie in memory in one order and without gaps."""
    if param.is_contiguous():
        return all(other.is_contiguous() for other in others)
    return is_dense(param) and all(other.stride() == param.stride() for other in others)


leave_alone(sys.modules[__name__], launch=True)  # loaded where first needed, after the package was marked
