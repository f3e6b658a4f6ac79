"""verl's FSDP engine: its training step, its optimizer step, and its checkpoints, on FSDP2."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from transformers import PretrainedConfig
from verl.utils import tensordict_utils
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from experiments.engine_drivers.job import (
    Job,
    Result,
    half,
    loss_of,
    result,
    sgd,
    sharded,
    tiny,
)

CONTENTS = ["model", "optimizer", "extra"]
torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]


class TinyEngine(FSDPEngine):  # type: ignore[misc]
    """The engine with the tiny network; the constructor of FSDPEngine loads a language model."""

    def __init__(self, job: Job) -> None:
        self.module = sharded(tiny(), torch.float32)  # verl's default reduce_dtype
        self.module.config = PretrainedConfig()
        self.module.can_generate = lambda: False
        self.optimizer = sgd(self.module.parameters())
        self.engine_config = FSDPEngineConfig(strategy="fsdp2", dtype="float16")
        self.optimizer_config = SimpleNamespace(clip_grad=job.clip or math.inf)
        self.scaler = ShardedGradScaler("cpu", job.scale, growth_interval=job.interval)
        self.ulysses_device_mesh, self.ulysses_sequence_parallel_size = None, 1
        self._qat_enabled = False
        self.checkpoints = FSDPCheckpointManager(  # ampsim: ignore[AMP112]
            self.module,
            self.optimizer,
            checkpoint_config={"save_contents": CONTENTS, "load_contents": CONTENTS},
        )

    def forward_step(
        self, micro_batch: Any, loss_function: Any, forward_only: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        with half():
            loss = loss_of(self.module, (micro_batch["inputs"], micro_batch["targets"]))
        return loss, {"loss": loss.item(), "metrics": {}}


def train(job: Job) -> Result:
    engine = TinyEngine(job)
    if job.start:
        engine.checkpoints.load_checkpoint(str(job.folder))
    for inputs, targets in job.batches[job.start : job.stop]:
        tensors = {
            "inputs": inputs,
            "targets": targets,
            "loss_mask": torch.ones_like(targets),
        }
        data = TensorDict(tensors, batch_size=len(inputs))
        tensordict_utils.assign_non_tensor(
            data, use_dynamic_bsz=False, micro_batch_size_per_gpu=len(inputs)
        )
        engine.train_batch(data, None)
    engine.checkpoints.save_checkpoint(str(job.folder))
    return result(
        engine.module.parameters(), engine.optimizer, engine.scaler.get_scale()
    )
