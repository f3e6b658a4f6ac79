"""Plain torch, as its AMP examples have it: accumulation, clipping, a schedule, and an average of
the parameters.
"""

from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ampsim.testing import Loop
from experiments.frameworks import tiny

batches = tiny.batches()


def make(scaler: torch.amp.GradScaler, group: Any = None) -> Loop:
    """Make the loop that is written by hand; on ranks in DistributedDataParallel, as torch's DDP
    tutorial has it.
    """
    model = tiny.model()
    wrapped = nn.parallel.DistributedDataParallel(model) if group else model
    optimizer, schedule = tiny.adam(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    logs: dict[str, Any] = {}

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        for part in tiny.parts(batch):
            logs["loss"] = tiny.loss_of(wrapped, part)
            scaler.scale(logs["loss"] / len(tiny.parts(batch))).backward()
        scaler.unscale_(optimizer)
        logs["norm"] = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # the optimizer has stepped
            schedule.step()
            average.update_parameters(model)

    state = {
        "model": model,
        "optimizer": optimizer,
        "schedule": schedule,
        "average": average,
    }
    return Loop(step, state, lambda: logs, tiny.cut)
