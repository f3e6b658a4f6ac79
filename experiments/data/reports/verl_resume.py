# mypy: ignore-errors
"""verl: a checkpoint of the FSDP engine does not contain the loss scale.

Run with verl 0.9.1 and torch 2.14.1 on the CPU: the scale is 2^15 after an overflow, and 2^16 on resume.
"""

import tempfile

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from transformers import PretrainedConfig
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

torch.cuda.current_device = lambda: "cpu"
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def start():
    engine = FSDPEngine.__new__(FSDPEngine)  # the constructor loads a language model
    engine.module = fully_shard(torch.nn.Linear(2, 1))
    engine.module.config, engine.module.can_generate = PretrainedConfig(), lambda: False
    engine.optimizer = torch.optim.SGD(engine.module.parameters(), lr=0.1)
    engine.optimizer_config, engine._qat_enabled = (  # noqa: SLF001
        type("Config", (), {"clip_grad": 1.0}),
        False,
    )
    engine.scaler = ShardedGradScaler(
        "cpu", growth_interval=400
    )  # as _build_fsdp_module has it
    config = dict.fromkeys(
        ("save_contents", "load_contents"), ("model", "optimizer", "extra")
    )
    return engine, FSDPCheckpointManager(
        engine.module, engine.optimizer, checkpoint_config=config
    )


with tempfile.TemporaryDirectory() as folder:
    engine, checkpoints = start()
    engine.scaler.scale(
        engine.module(torch.full((1, 2), float("inf"))).sum()
    ).backward()
    engine.optimizer_step()  # skipped
    checkpoints.save_checkpoint(folder)
    resumed, checkpoints = start()
    checkpoints.load_checkpoint(folder)
    resumed.scaler.scale(torch.zeros(1))  # the first call creates the scale
    print(f"scale {engine.scaler.get_scale()} -> {resumed.scaler.get_scale()}")
