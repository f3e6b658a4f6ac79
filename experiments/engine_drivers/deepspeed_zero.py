"""DeepSpeed, ZeRO stages 1 and 3."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed reads it when it is imported
import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param

from experiments.engine_drivers.job import Job, Result, loss_of, result, sgd, tiny

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
    False  # gloo, without a compiler
)
accelerator = type(get_accelerator())
accelerator.is_fp16_supported = lambda self: True
accelerator.supported_dtypes = lambda self: [
    torch.float32,
    torch.float16,
    torch.bfloat16,
]


def stage3(job: Job) -> Result:
    return train(job, stage=3)


def train(job: Job, stage: int = 1) -> Result:
    model = tiny().half()
    scale = {"initial_scale_power": int(job.scale).bit_length() - 1, "hysteresis": 1}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True, "loss_scale_window": job.interval, **scale},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": job.clip,
    }
    engine, *_ = deepspeed.initialize(
        dist_init_required=False,
        model=model,
        optimizer=sgd(model.parameters()),
        config=config,
    )
    if job.start:
        engine.load_checkpoint(str(job.folder))
    for inputs, targets in job.batches[job.start : job.stop]:
        engine.backward(loss_of(engine, (inputs.half(), targets)))
        engine.step()
    engine.save_checkpoint(str(job.folder))
    whole = [safe_get_full_fp32_param(value) for value in model.parameters()]
    return result(whole, engine.optimizer, float(engine.optimizer.loss_scale))
