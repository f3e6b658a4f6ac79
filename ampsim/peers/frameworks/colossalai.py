"""ColossalAI's scaler in the optimizer that drives it."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from ampsim.peers.frameworks.here import one_rank
from ampsim.peers.frameworks.torch_like import Optimized
from ampsim.peers.peer import Peer, Step


class ColossalAI(Peer):
    """MixedPrecisionOptimizer around torch's SGD."""

    name = "colossalai"
    requirement = "colossalai==0.5.0"
    environment = "torch-more"
    target = "colossalai.amp.naive_amp.grad_scaler.DynamicGradScaler"
    source = "https://github.com/hpcaitech/ColossalAI/blob/v0.5.0/colossalai/amp/naive_amp/grad_scaler/dynamic_grad_scaler.py#L15"
    dialect = "colossalai.DynamicGradScaler"
    options = {"max_scale": 2.0**32}  # of the optimizer, whose scaler's own is none
    constants = {
        "initial_scale": "init",
        "growth_factor": "growth",
        "backoff_factor": "backoff",
        "growth_interval": "interval",
        "min_scale": "min_scale",
        "max_scale": "max_scale",
        "hysteresis": "hysteresis",
    }
    patched = "its CPU accelerator says that there is one device; the scaler asks and has no use for the answer"

    def start(self, **constants: Any) -> None:
        from colossalai.accelerator.cpu_accelerator import CpuAccelerator
        from colossalai.amp.naive_amp.mixed_precision_optimizer import MixedPrecisionOptimizer

        one_rank()
        self.optimized = Optimized()
        with patch.object(CpuAccelerator, "device_count", return_value=1):
            self.wrapped = MixedPrecisionOptimizer(self.optimized.optimizer, **constants)

    def get_scale(self) -> float:
        return float(self.wrapped.mixed_precision.loss_scale)

    def scale_loss(self, loss: float) -> float:
        import torch

        return float(self.wrapped.mixed_precision.pre_backward(torch.tensor(loss, dtype=torch.float32)))

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        self.scale_loss(0.0)  # it notes that a backward pass came before
        self.optimized.give(scaled)
        self.wrapped.step()
        return self.optimized.noted(used, self.get_scale())

    def state_dict(self) -> object:
        saved = self.wrapped.mixed_precision.grad_scaler.state_dict()
        return {**saved, "scale": saved["scale"].tolist()}

    def load_state_dict(self, state: Any) -> None:
        import torch

        scale = torch.tensor(state["scale"])
        self.wrapped.mixed_precision.grad_scaler.load_state_dict({**state, "scale": scale})
