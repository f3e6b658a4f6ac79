"""BMTrain's manager of optimizers, over one parameter of float16: it checks no others."""

import sys
import types
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock, patch

from ampsim.peers.frameworks.here import cuda_is_cpu, held_by_float16, pass_over
from ampsim.peers.frameworks.torch_like import Optimized
from ampsim.peers.peer import Peer, Step


class BMTrain(Peer):
    """OptimManager around torch's SGD."""

    name = "bmtrain"
    requirement = "bmtrain==1.0.1"
    environment = "torch-more"
    target = "bmtrain.optim.optim_manager.OptimManager"
    source = "https://github.com/OpenBMB/BMTrain/blob/1.0.1/bmtrain/optim/optim_manager.py#L30"
    dialect = "bmtrain.OptimManager"
    constants = {
        "loss_scale": "init",
        "loss_scale_steps": "interval",
        "loss_scale_factor": "factor",
        "min_loss_scale": "min_loss_scale",
        "max_loss_scale": "max_loss_scale",
    }
    patched = "the CUDA kernel that looks for inf and NaN is torch.isfinite; nccl, streams, __init__ are left out"

    def start(self, loss_scale: float = 2.0**16, **constants: Any) -> None:
        if "bmtrain" not in sys.modules:
            pass_over("bmtrain", "bmtrain.optim")
            kernels: Any = types.ModuleType("bmtrain.loss._function")
            kernels.has_inf_nan = _has_inf_nan
            nothing = {name: types.ModuleType(name) for name in ("bmtrain.nccl", "bmtrain.loss")}
            sys.modules.update({**nothing, "bmtrain.loss._function": kernels})
            vars(sys.modules["bmtrain"])["nccl"] = nothing["bmtrain.nccl"]
        from bmtrain.global_var import config
        from bmtrain.optim.optim_manager import OptimManager

        config["load_stream"], config["zero_size"] = MagicMock(), 1
        self.manager, self.optimized = OptimManager(loss_scale=loss_scale, **constants), Optimized(dtype="float16")
        self.manager.add_optimizer(self.optimized.optimizer)

    def get_scale(self) -> float:
        return float(self.manager.loss_scale)

    def scale_loss(self, loss: float) -> float:
        import torch

        return float(self.manager.scale_loss(torch.tensor(loss, dtype=torch.float32)))

    def step(self, scaled: Sequence[float]) -> Step:
        held_by_float16(scaled)
        used = self.get_scale()
        self.optimized.give(scaled)
        with cuda_is_cpu(), patch("torch.cuda.current_stream"):
            self.manager.step()
        return self.optimized.noted(used, self.get_scale())

    def state_dict(self) -> object:
        return {"loss_scale": self.manager.loss_scale}  # what its state_dict has of the scale

    def load_state_dict(self, state: Any) -> None:
        self.manager.loss_scale = state["loss_scale"]


def _has_inf_nan(gradient: Any, found: Any) -> None:
    found |= not bool(gradient.isfinite().all())
