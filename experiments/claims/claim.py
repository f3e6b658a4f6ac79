"""What a claim is, and what claims about scalers share. A claim is looked at in the same way on every device."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ampsim.torch import GradScaler

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.125),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.125),
    "fused SGD": lambda params: torch.optim.SGD(params, lr=0.125, fused=True),
    "fused AdamW": lambda params: torch.optim.AdamW(params, lr=0.125, fused=True),
}


Scaler = torch.amp.GradScaler | GradScaler
Maker = Callable[[str], Scaler]  # of a device
S = TypeVar("S", bound=Scaler)
See = Callable[[str], object]


@dataclass(frozen=True)
class Claim:
    """A sentence, what the CPU showed, and the function of a device that looks."""

    text: str
    expected: object
    see: See


def within(low: float, high: float) -> dict[str, float]:
    """Return the prediction that a number lies between two others, or is one of them."""
    return {"at least": low, "at most": high}


def into(claims: dict[str, Claim]) -> Callable[[str, object], Callable[[See], See]]:
    """Return a decorator that adds a claim, with its text and what is expected, under its function's name."""

    def claim(text: str, expected: object) -> Callable[[See], See]:
        def add(see: See) -> See:
            claims[see.__name__.replace("_", " ")] = Claim(text, expected, see)
            return see

        return add

    return claim


def trainee(
    device: str,
    kind: str = "SGD",
    gradient: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    """Return a parameter of one element, which is 0, with a gradient if one is given, and its optimizer."""
    param = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
    param.grad = None if gradient is None else torch.full_like(param, gradient)
    return param, OPTIMIZERS[kind]([param])


def at_scale(scaler: S, scale: float, device: str) -> S:
    """Return the scaler with a scale, as if its run had come there."""
    scaler.scale(torch.ones((), device=device))
    scaler.load_state_dict({**scaler.state_dict(), "scale": scale})
    return scaler


def iterate(scaler: Scaler, optimizer: torch.optim.Optimizer, gradient: float) -> None:
    """Make one iteration in which every element of every scaled gradient is `gradient`."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    scaler.scale(torch.ones((), device=params[0].device))
    for p in params:
        p.grad = torch.full_like(p, gradient)
    scaler.step(optimizer)
    scaler.update()


def after_one_step(
    make: Maker,
    device: str,
    kind: str,
    gradient: float,
    scale: float,
    dtype: torch.dtype = torch.float32,
) -> float:
    """Return what a parameter that was 0 is after one step with a gradient that is still scaled."""
    param, optimizer = trainee(device, kind, dtype=dtype)
    iterate(at_scale(make(device), scale, device), optimizer, gradient)
    return param.item()


def finite_by_kind(make: Maker, device: str, gradient: float, scale: float) -> dict[str, bool]:
    """Return for each optimizer whether its parameter is a number after one step."""
    return {
        kind: math.isfinite(after_one_step(make, device, kind, gradient, scale))
        for kind in OPTIMIZERS
    }


def told(call: Callable[[], object]) -> str:
    """Return the type of what a call raises, or `nothing`."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def same(a: Tensor, b: Tensor) -> int:
    """Count the elements of two float32 tensors that agree in every bit."""
    return int((a.cpu().view(torch.int32) == b.cpu().view(torch.int32)).sum())


def theirs(device: str) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device)


def ours(device: str) -> GradScaler:
    return GradScaler(device)
