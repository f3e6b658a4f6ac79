"""DeepSpeed without ZeRO under ``torch_autocast`` in float16, the one of its ways that uses torch's scaler."""

import os
from typing import Any
from unittest.mock import patch

import deepspeed
import torch
from torch.distributed import HashStore, init_process_group, is_initialized  # type: ignore[attr-defined]

from ampsim.testing.loop.adapters import tiny
from ampsim.testing.loop.loop import Loop

batches = tiny.batches()
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.1,
    "torch_autocast": {"enabled": True, "dtype": "float16"},
}


def make(scaler: torch.amp.GradScaler) -> Loop:
    """Make the loop of DeepSpeed's tutorial, in a process group of one."""
    if not is_initialized():
        init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a kernel for ranks, which it would compile first
    net = tiny.model()
    adam, schedule = tiny.adam(net)
    with patch.dict(os.environ, LOCAL_RANK="0"):
        engine, optimizer, _, _ = deepspeed.initialize(model=net, optimizer=adam, lr_scheduler=schedule, config=CONFIG)
    engine.torch_autocast_z0_gradscaler = scaler
    engine._config.torch_autocast_enabled = False  # noqa: SLF001 - the forward pass stays in float32
    logs: dict[str, Any] = {}

    def step(batch: Any) -> None:
        engine.set_train_batch_size(len(tiny.parts(batch)))
        for part in tiny.parts(batch):
            logs["loss"] = tiny.loss_of(engine, part)
            engine.backward(logs["loss"])
            engine.step()

    state = {
        "model": net,
        "optimizer": optimizer,
        "schedule": schedule,
        "steps": lambda: engine.global_steps - engine.skipped_steps,
    }
    return Loop(step, state, lambda: logs, tiny.cut, *tiny.in_folder(engine.save_checkpoint, engine.load_checkpoint))
