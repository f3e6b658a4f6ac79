"""Adam and AdamW over all tensors of an optimizer, in eight words per element and two launches of Triton kernels.

`kernels.check` reads the gradients once: norm, non-finite check, and the divisor that unscales and clips; 1 word.
`step` reads gradient, parameter and both moments, and writes all but the gradient; 7 words, or none if the check found
inf or NaN. torch moves 12: its `unscale_` and clip write the gradients, which are read for the norm between, and so
does its fused step.

The map of tiles depends on sizes alone, and is made once per model, as are the addresses of parameters and moments;
those of the gradients are 16 bytes per tensor, and the table is the one that the check has read.

They have been run in Triton's interpreter, and compiled for sm_80, sm_90 and sm_100 (`experiments.compiled_kernels`);
not yet on a GPU.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ampsim._triton import is_dense, runs, tl
from ampsim.torch.dynamo import leave_alone
from ampsim.torch.gradients import kernels, kernels_adam
from ampsim.torch.gradients.collect import Groups, Numbers, PlainGroups, numbers
from ampsim.torch.gradients.kernels import DTYPES, addresses_of

PART = 1024  # elements of a tile that one program of `adam` steps, 8 per thread
STEP_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}  # what is fused is written as fma
_PLAIN = (Tensor, nn.Parameter)
_KIND = "a tensor is on another device, or a subclass of Tensor: expected plain ones on one device"
_DTYPE = "dtypes: expected parameters and state in float32, gradients in one of float32, float16 and bfloat16"
_STRIDES = "strides: expected no gaps, and gradient and state to lie in memory as their parameter does"


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


class Addresses(NamedTuple):
    """The places of the tensors of one group: their elements, and where each list lies."""

    sizes: Numbers
    grads: Numbers
    state: tuple[Numbers, Numbers, Numbers]  # parameters and moments

    @classmethod
    def of(cls, tensors: Tensors) -> "Addresses":
        """Look at the tensors."""
        sizes, grads = addresses_of(tensors.grads)
        params, first, second = (numbers(Tensor.data_ptr, each) for each in tensors[1:4])
        return cls(sizes, grads, (params, first, second))


def _powers(counts: Tensor, *betas: float) -> list[Tensor]:
    """Return each beta's power per tensor, float32: on CUDA as torch's own kernel rounds it, on the CPU to nearest."""
    wide = counts if counts.is_cuda else counts.double()
    return [torch.pow(float(np.float32(beta)), wide).float() for beta in betas]


def step(
    tensors: Tensors,
    found_inf: Tensor,
    divisor: Tensor | None,
    chosen: Hyperparameters,
    addresses: Addresses | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """Step parameters by gradients that are divided first, and count the step; do nothing if `found_inf` is 1.

    Gradients and moments lie in memory as their parameters do. `found_inf` and `divisor` have shape (), float32;
    `addresses` is what `Addresses.of` returns, and `counts` what the last call did, shape (tensors,), where they are
    known. One launch, and some small ones beside it: for the counts and the corrections. In a capture as
    `kernels.check`.

    Returns:
        The counts after the step, which the next call writes.
    """
    grads = tensors.grads
    with torch.cuda.device_of(found_inf):  # type: ignore[no-untyped-call]
        device, at = grads[0].device, addresses or Addresses.of(tensors)
        tiles, table = kernels.tiles_on(device, at.sizes), kernels.table_on(device, at.sizes, at.grads)
        state = kernels.table_on(device, *at.state)
        clean = torch.rsub(found_inf, 1.0)
        torch._foreach_add_([*tensors.steps] if counts is None else [*tensors.steps, counts], clean)
        counts = torch.stack([*tensors.steps]).reshape(-1) if counts is None else counts
        if not tiles.size(0):
            return counts
        lr, beta1, beta2, eps, decay = map(float, chosen[:5])
        dtype, decays = getattr(tl, DTYPES[grads[0].dtype]), decay != 0.0
        kernels_adam.adam[(tiles.size(0) * (kernels.BLOCK // PART),)](
            tiles, table, state, *_powers(counts, beta1, beta2), found_inf, divisor, lr, beta1, beta2, eps, decay,
            dtype, decays, chosen.decoupled, chosen.maximize, kernels.BLOCK, PART, **STEP_OPTIONS
        )  # fmt: skip
    return counts


def available(device: torch.device) -> bool:
    """Tell whether the kernels run on `device`."""
    return runs(_try, device)


def _try(grads: list[Tensor]) -> None:
    one = torch.ones((), device=grads[0].device)
    checked = kernels.check(grads, one, 1.0)
    param, exp_avg, exp_avg_sq = ([torch.zeros_like(grads[0])] for _ in range(3))
    tensors = Tensors(grads, param, exp_avg, exp_avg_sq, steps=[torch.zeros_like(one)])
    chosen = Hyperparameters(1e-3, 0.9, 0.999, 1e-8, 0.0, decoupled=True, maximize=False)
    step(tensors, checked.found_inf, checked.divisor, chosen)


def why_not_check(groups: Groups) -> str | None:
    """Say why `kernels.check` cannot read gradients, grouped by device and dtype; None if it can."""
    ((device, dtype), grads), *more = groups.items()
    if more:
        return _DTYPE if all(each == device for (each, _), _ in more) else _KIND
    if dtype not in DTYPES:
        return _DTYPE
    if isinstance(groups, PlainGroups):
        return None
    if {*map(type, grads)} != {Tensor}:
        return _KIND
    return None if all(map(is_dense, grads)) else _STRIDES


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
