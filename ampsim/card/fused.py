"""Probe: the fused step against torch's, to the bit; torch's scaler divides in its own kernel, nobody clips."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ampsim.records import Record
from ampsim.torch import GradScaler

STEPS = 40


def run(device: str, left: Callable[[], float]) -> Record:
    """Step pair after pair of twins while there is time; return those that come to differ."""
    runs: list[Record] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fused_step=True", RuntimeWarning)  # it says why torch steps instead
        try:
            while not runs or left():
                runs.append(twins(device, len(runs)))
        except RuntimeWarning as warning:
            return {"skipped": str(warning)}
    return {"runs": len(runs), "differing": [each for each in runs if each["differing"]]}


def twins(device: str, seed: int) -> Record:
    """Step the same parameters by torch and by ours; count the elements that differ, and after which step the first."""
    draw, first = random.Random(seed), None  # noqa: S311 - no secret
    kind, sizes = draw.choice([torch.optim.Adam, torch.optim.AdamW]), [draw.randint(1, 4000), 8192, 1_000_003]
    betas, decay = draw.choice([(0.9, 0.999), (0.8, 0.95)]), draw.choice([0, 0.1])
    pairs = [[torch.nn.Parameter(torch.linspace(-1, 1, size, device=device)) for size in sizes] for _ in "ab"]
    optimizers: list[Any] = [kind(pair, betas=betas, weight_decay=decay, fused=True) for pair in pairs]
    scalers: list[Any] = [torch.amp.GradScaler(device, growth_interval=2)]
    scalers.append(GradScaler(device, growth_interval=2, fused_step=True))
    generator = torch.Generator(device).manual_seed(seed)
    for number in range(STEPS):
        grads = [torch.randn(size, device=device, generator=generator) for size in sizes]
        grads[-1][-1] = float("inf") if number % 5 == 1 else 1.0
        for params, optimizer, scaler in zip(pairs, optimizers, scalers, strict=True):
            scale = scaler.scale(torch.ones((), device=device))
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad * scale
            scaler.step(optimizer)
            scaler.update()
        differing = sum(int((a != b).sum()) for a, b in zip(*pairs, strict=True))
        first = number if differing and first is None else first
    return {
        "seed": seed, "kind": kind.__name__, "betas": betas, "decay": decay, "first": first, "differing": differing,
        "scales": [scaler.get_scale() for scaler in scalers],
    }  # fmt: skip
