"""Loops written by hand: float32 without a scaler, torch's GradScaler, FSDP2, and mmengine's
wrapper.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from experiments.engine_drivers.job import (
    Job,
    Result,
    half,
    loss_of,
    replicated,
    result,
    scaler_for,
    sgd,
    sharded,
    tiny,
)


def float32(job: Job) -> Result:
    """Train in one process without a scaler: the reference."""
    model = tiny()
    optimizer = sgd(model.parameters())
    for batch in job.batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        if job.clip:
            nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
    return result(model.parameters(), optimizer, 1.0)


def grad_scaler(
    job: Job, wrap: Callable[[nn.Module], nn.Module] = replicated
) -> Result:
    model = wrap(tiny())
    optimizer, scaler = sgd(model.parameters()), scaler_for(job)
    parts: list[Any] = [model, optimizer, scaler]
    path = job.folder / "checkpoint.pt"
    if job.start:
        for part, state in zip(
            parts, torch.load(path, weights_only=False), strict=True
        ):
            part.load_state_dict(state)
    for batch in job.batches[job.start : job.stop]:
        optimizer.zero_grad()
        with half():
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if job.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        scaler.step(optimizer)
        scaler.update()
    torch.save([part.state_dict() for part in parts], path)
    return result(model.parameters(), optimizer, scaler.get_scale())


def fsdp2(job: Job) -> Result:
    return grad_scaler(job, sharded)


def mmengine(job: Job) -> Result:
    from mmengine.optim.optimizer import amp_optimizer_wrapper as amp

    amp.is_cuda_available = lambda: True
    amp.GradScaler = lambda **options: torch.amp.GradScaler("cpu", **options)
    model = replicated(tiny())
    optimizer = sgd(model.parameters())
    clip = {"max_norm": job.clip} if job.clip else None
    scale = {"init_scale": job.scale, "growth_interval": job.interval}
    wrapper = amp.AmpOptimWrapper(scale, optimizer=optimizer, clip_grad=clip)
    path = job.folder / "checkpoint.pt"
    if job.start:
        saved = torch.load(path)
        model.load_state_dict(saved[0])
        wrapper.load_state_dict(saved[1])
    for batch in job.batches[job.start : job.stop]:
        with half():
            loss = loss_of(model, batch)
        wrapper.update_params(loss)
    torch.save([model.state_dict(), wrapper.state_dict()], path)
    return result(model.parameters(), optimizer, wrapper.loss_scaler.get_scale())
