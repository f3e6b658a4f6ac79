# mypy: ignore-errors
"""slime 624b824a: `prepare_grads()` then `step()` divides float32 gradients by the loss scale twice.

slime/backends/megatron_utils/model.py, train_one_step, makes these two calls if
check_for_nan_in_loss_and_grad is off. Run with megatron-core 0.16.1 on the CPU: "cuda" means "cpu" here.
"""

import torch
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.grad_scaler import ConstantGradScaler
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from torch.overrides import TorchFunctionMode


class CudaNames(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {
            name: "cpu" if x == "cuda" else x for name, x in (kwargs or {}).items()
        }
        value = func(*args, **kwargs)
        named = func is torch.Tensor.type and isinstance(value, str)
        return value.replace("torch.", "torch.cuda.") if named else value


torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
for prepare_first in (False, True):
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
    sgd = torch.optim.SGD([weight], lr=1.0)
    with CudaNames():
        config, scaler = (
            OptimizerConfig(fp16=True, clip_grad=0.0),
            ConstantGradScaler(1024.0),
        )
        optimizer = Float16OptimizerWithFloat16Params(
            sgd, config, scaler, lambda *_: None
        )
        optimizer.model_parallel_group = torch.distributed.group.WORLD
        optimizer.scale_loss(weight.float().sum() * 0.5).backward()
        weight.main_grad = (
            weight.grad.float()
        )  # as Megatron's DDP with fp32 accumulation
        if not (prepare_first and optimizer.prepare_grads()):
            optimizer.step()
    print(
        f"prepare_grads() first: {prepare_first}; gradient 0.5, step {1 - weight.main_param.item()}"
    )
