"""With DeepSpeed's ZeRO stage 0 and fp16, one step of SGD moves a weight by its gradient.

Run on a CPU with deepspeed 0.19.8; at stage 0 the weight moves by 1.5 / 256, at stage 1 by 1.5.
"""

import os
import tempfile

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed  # it reads the environment when it is imported
import torch
from deepspeed.accelerator import get_accelerator

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

for stage in (0, 1):
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float16)
    torch.nn.init.constant_(model.weight, 4.0)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True, "initial_scale_power": 8},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 0.0,  # its default clips at 1.0
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=sgd, config=config, dist_init_required=False
    )
    engine.backward(engine(torch.ones(1, 2, dtype=torch.float16)).sum() * 1.5)
    engine.step()
    print(f"stage {stage}: moved by {4.0 - model.weight[0, 0].item()}, expected 1.5")
