"""torch.amp.GradScaler and torch's ShardedGradScaler, both on the CPU."""

from typing import Any

from ampsim.frameworks.adapters.torch_like import TorchLike, one_rank

_TORCH = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch"


class Torch(TorchLike):
    """torch's own scaler."""

    name = "torch"
    requirement = "torch==2.13.0"
    target = "torch.amp.GradScaler"
    source = f"{_TORCH}/amp/grad_scaler.py#L52"
    dialect = "torch.amp.GradScaler"

    def make(self, **constants: Any) -> Any:
        import torch

        return torch.amp.GradScaler("cpu", **constants)


class Sharded(TorchLike):
    """The scaler of FSDP, in a process group of one."""

    name = "torch-sharded"
    requirement = "torch==2.13.0"
    target = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
    source = f"{_TORCH}/distributed/fsdp/sharded_grad_scaler.py#L45"
    dialect = "torch.fsdp.ShardedGradScaler[cpu]"

    def make(self, **constants: Any) -> Any:
        one_rank()
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(device="cpu", **constants)
