"""Megatron's optimizer and data parallelism, and the order in which slime calls the optimizer."""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.grad_scaler import DynamicGradScaler
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.overrides import TorchFunctionMode

from experiments.engine_drivers.job import Job, Result, loss_of, result, sgd, tiny

torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]


class CudaNames(TorchFunctionMode):
    """Place tensors for CUDA on the CPU, and name the types of CPU tensors as CUDA's."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if "device" in options:
            options["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        value = func(*args, **options)
        if func is Tensor.type and isinstance(value, str):
            return value.replace("torch.", "torch.cuda.")
        return value


def slime(job: Job) -> Result:
    """Train with slime's order of calls where it checks for NaN itself: prepare_grads, then step."""
    # slime/backends/megatron_utils/model.py at 624b824a, train_one_step
    return train(job, prepare_first=True)


def train(job: Job, prepare_first: bool = False) -> Result:
    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel()
    inner = tiny().half()
    sizes = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    group = {"params": list(inner.parameters()), "wd_mult": 1.0, "lr_mult": 1.0}
    group |= {"is_expert_parallel": False, "is_decoupled_lr": False}
    optimizer = sgd([group])
    config = OptimizerConfig(fp16=True, clip_grad=job.clip)
    path = job.folder / "checkpoint.pt"
    with CudaNames():
        model = DistributedDataParallel(
            sizes, DistributedDataParallelConfig(grad_reduce_in_fp32=True), inner
        )
        scaler = DynamicGradScaler(
            job.scale, 1.0, 2.0, 0.5, growth_interval=job.interval, hysteresis=1
        )
        wrapper = Float16OptimizerWithFloat16Params(
            optimizer, config, scaler, lambda *_: None
        )
        # Without tensor or pipeline parallelism, each rank has the whole model and all gradients.
        alone = parallel_state.get_model_parallel_group()
        wrapper.grad_stats_parallel_group = wrapper.model_parallel_group = (
            wrapper.tp_group
        ) = alone
        if job.start:
            saved = torch.load(path)
            inner.load_state_dict(saved[0])
            wrapper.load_state_dict(saved[1])
        for inputs, targets in job.batches[job.start : job.stop]:
            model.zero_grad_buffer()
            wrapper.zero_grad()
            wrapper.scale_loss(loss_of(model, (inputs.half(), targets))).backward()
            model.finish_grad_sync()
            if not (prepare_first and wrapper.prepare_grads()):
                wrapper.step()
        torch.save([inner.state_dict(), wrapper.state_dict()], path)
        scale = float(wrapper.get_loss_scale())
    main = [value for group in wrapper.fp32_from_float16_groups for value in group]
    return result(main, optimizer, scale)
