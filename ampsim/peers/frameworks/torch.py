"""torch.amp.GradScaler on the CPU."""

from typing import Any

from ampsim.peers.frameworks.torch_like import TorchLike


class Torch(TorchLike):
    """torch's own scaler."""

    name = "torch"
    requirement = "torch==2.13.0"
    target = "torch.amp.GradScaler"
    source = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/amp/grad_scaler.py#L52"
    dialect = "torch.amp.GradScaler"

    def start(self, **constants: Any) -> None:
        import torch

        self.scaler = torch.amp.GradScaler("cpu", **constants)
