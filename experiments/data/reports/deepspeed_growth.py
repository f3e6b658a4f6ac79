"""In DeepSpeed's engine, a step in which the loss scale grows takes half of the gradient.

`step` updates the scale and then divides the gradients by the new one, also at ZeRO stage 0. A
gradient norm above `gradient_clipping` hides it: the clipped gradient has the right norm. Run on a
CPU with deepspeed 0.19.8, where the scale grows after every second step.
"""

import os
import tempfile

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed  # it reads the environment when it is imported
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
    False  # a kernel that needs a compiler
)
accelerator = type(
    get_accelerator()
)  # DeepSpeed refuses fp16 on a CPU; with CUDA, drop this part
accelerator.is_fp16_supported = lambda self: True
accelerator.supported_dtypes = lambda self: [
    torch.float32,
    torch.float16,
    torch.bfloat16,
]
store = f"file://{tempfile.mkdtemp()}/store"
torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)

for stage in (1, 2, 3):
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float16)
    torch.nn.init.constant_(model.weight, 4.0)
    fp16 = {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {**fp16, "hysteresis": 1},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=sgd, config=config, dist_init_required=False
    )
    before, scale = 4.0, 16.0
    for _ in range(3):
        engine.backward(engine(torch.ones(1, 1, dtype=torch.float16)).sum() * 0.25)
        engine.step()
        after = safe_get_full_fp32_param(model.weight).item()
        new = float(engine.optimizer.loss_scale)
        print(
            f"stage {stage}: scale {scale} -> {new}, moved by {before - after}, expected 0.25"
        )
        before, scale = after, new
