"""Claims about single steps: gradients, what is written and what waits; see `experiments.device_claims`."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

from ampsim.torch import AsyncGradScaler
from experiments.claims.claim import (
    OPTIMIZERS,
    Claim,
    Maker,
    Scaler,
    after_one_step,
    at_scale,
    into,
    iterate,
    ours,
    same,
    theirs,
    told,
    trainee,
)
from experiments.timing import clocks

INF = math.inf
CLAIMS: dict[str, Claim] = {}
claim = into(CLAIMS)


# ------------------------------------------------------------------------------------------- arithmetic on gradients


@claim(
    "Torch's plain optimizers get g times a rounded reciprocal, its fused ones g over the scale. How many of 10,000 "
    "gradients at scale 1700 are equal to the last bit:",
    {"plain and g * (1 / S)": 10_000, "fused and g / S": 10_000, "plain and fused": 5_278},
)
def last_digit_of_an_unscaled_gradient(device: str) -> object:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    unscaled = {}
    for kind in ("SGD", "fused SGD"):
        param = nn.Parameter(torch.zeros_like(values, device=device))
        scaler = at_scale(theirs(device), 1700.0, device)
        param.grad = values.clone().to(device)
        scaler.step(OPTIMIZERS[kind]([param]))
        unscaled[kind] = param.grad
    return {
        "plain and g * (1 / S)": same(unscaled["SGD"], values * torch.tensor(1 / 1700.0)),
        "fused and g / S": same(unscaled["fused SGD"], values / 1700.0),
        "plain and fused": same(unscaled["SGD"], unscaled["fused SGD"]),
    }


@claim(
    "A float32 subnormal is not flushed when it is unscaled: 2^-130 at scale 2^10, in units of 2^-149:",
    512.0,
)
def subnormal_gradient(device: str) -> object:
    param, optimizer = trainee(device, gradient=2.0**-130)
    at_scale(theirs(device), 2.0**10, device).unscale_(optimizer)
    assert param.grad is not None  # noqa: S101 - it was given
    return param.grad.double().item() * 2.0**149


@claim(
    "A float64 gradient of 1e300 is no overflow, at scale 4 or 1/2. The parameter over what it should be, 12 digits:",
    {name: {"SGD": [1.0, 1.0], "fused SGD": [1.0, 1.0]} for name in ("torch", "ours")},
)
def float64_gradient_beyond_float32(device: str) -> object:
    def share(make: Maker, kind: str, scale: float) -> float:
        made = after_one_step(make, device, kind, 1e300, scale, torch.float64)
        return round(made / (-0.125 * 1e300 / scale), 12)

    return {
        name: {
            kind: [share(make, kind, scale) for scale in (4.0, 0.5)]
            for kind in ("SGD", "fused SGD")
        }
        for name, make in (("torch", theirs), ("ours", ours))
    }


@claim(
    "Torch refuses to unscale float16 gradients, but hands them to a fused optimizer.",
    {"SGD": "ValueError", "fused SGD": "nothing"},
)
def float16_gradients(device: str) -> object:
    def step(kind: str) -> str:
        return told(
            lambda: iterate(theirs(device), trainee(device, kind, dtype=torch.float16)[1], 1.0)
        )

    return {kind: step(kind) for kind in ("SGD", "fused SGD")}


@claim(
    "A float16 loss of shape () is scaled in float32; one of shape (1,) overflows at the default scale.",
    {"()": ["float32", 2.0**16], "(1,)": ["float16", INF]},
)
def float16_loss(device: str) -> object:
    scaler = theirs(device)
    losses = [torch.ones(shape, device=device, dtype=torch.float16) for shape in ((), (1,))]
    scaled = [scaler.scale(loss) for loss in losses]
    return {
        text: [str(s.dtype)[6:], s.item()] for text, s in zip(("()", "(1,)"), scaled, strict=True)
    }


# ------------------------------------------------------------------------------------------- writes and waits


def backward_after_update(scaler: Any, device: str) -> str:
    """Scale one iteration's loss before the update of another one; return what its backward pass raises."""
    param, optimizer = trainee(device, gradient=1.0)
    scaled = scaler.scale(param.sum())
    scaler.step(optimizer)
    scaler.update()
    return told(scaled.backward)


@claim(
    "Torch's update writes the scale that autograd has saved, and the backward pass raises; ours makes a new one.",
    {
        "torch": "RuntimeError",
        "ours": "nothing",
        "versions of torch's": 3,
        "versions of ours": [0, 0, 0],
    },
)
def update_before_backward(device: str) -> object:
    torchs, scaler = theirs(device), AsyncGradScaler(device)
    other, (param, optimizer), scales = trainee(device)[1], trainee(device), []
    for _ in range(3):
        iterate(torchs, other, 1.0)
        ticket = scaler.begin_iteration()
        scales.append(ticket.value.scale_on(torch.device(device)))
        param.grad = torch.ones_like(param)
        scaler.step(optimizer, ticket=ticket)
        scaler.update(ticket=ticket)
    return {
        "torch": backward_after_update(theirs(device), device),
        "ours": backward_after_update(AsyncGradScaler(device), device),
        "versions of torch's": torchs._scale._version,  # type: ignore[union-attr]  # noqa: SLF001
        "versions of ours": [scale._version for scale in scales],  # noqa: SLF001
    }


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers that the host asks of tensors."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += func is torch.ops.aten._local_scalar_dense.default  # noqa: SLF001
        return func(*args, **(kwargs or {}))


def waits(scaler: Scaler, device: str, kind: str, *, clips: bool) -> int:
    """Count the waits of a second iteration: what the host reads, or on CUDA what torch's debug mode sees, if more."""
    param, optimizer = trainee(device, kind, gradient=1.0)

    def work() -> None:
        scaler.scale(param.sum())
        if clips:
            scaler.unscale_(optimizer)
            clip_grad_norm_([param], 1.0)
        scaler.step(optimizer)
        scaler.update()

    work()
    warned = clocks.warned_waits(work, device)
    with HostReads() as reads:  # type: ignore[no-untyped-call]
        work()
    return int(max(reads.count, warned))


def waits_by_kind(make: Maker, device: str) -> dict[str, list[int]]:
    """Count the waits of each optimizer without and with unscale_ and clip_grad_norm_."""
    return {
        kind: [waits(make(device), device, kind, clips=clips) for clips in (False, True)]
        for kind in ("SGD", "fused SGD")
    }


@claim(
    "What a step with torch's scaler reads on the host, without and with unscale_ and clip_grad_norm_: the flag of a "
    "plain optimizer, nothing of a fused one.",
    {"SGD": [1, 1], "fused SGD": [0, 0]},
)
def waits_with_torchs(device: str) -> object:
    return waits_by_kind(theirs, device)


@claim(
    "What a step with ours reads on the host. On the CPU, where nothing waits, it reads the scale too; on CUDA it "
    "should be 1 for a plain optimizer and 0 for a fused one.",
    {"SGD": [4, 4], "fused SGD": [4, 4]},
)
def waits_with_ours(device: str) -> object:
    return waits_by_kind(ours, device)
