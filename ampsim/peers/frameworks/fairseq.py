"""fairseq's scaler, told the norm of the gradients as its FP16Optimizer tells it."""

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from ampsim.peers.frameworks.here import held_by_float16, pass_over
from ampsim.peers.peer import Peer, Step


class Fairseq(Peer):
    """DynamicLossScaler; an OverflowError is its signal to skip."""

    name = "fairseq"
    requirement = "fairseq==0.12.2"
    environment = "torch-more"
    target = "fairseq.optim.dynamic_loss_scaler.DynamicLossScaler"
    source = "https://github.com/facebookresearch/fairseq/blob/v0.12.2/fairseq/optim/dynamic_loss_scaler.py#L7"
    dialect = "fairseq.DynamicLossScaler"
    constants = {
        "init_scale": "init",
        "scale_window": "interval",
        "scale_factor": "factor",
        "threshold": "threshold",
        "tolerance": "tolerance",
        "min_loss_scale": "min_loss_scale",
    }
    patched = (
        "its __init__, which Python 3.11 refuses (a mutable default), is passed over, and omegaconf, which only types "
        "need; FP16Optimizer, which saves the scaler, has an empty optimizer of float32"
    )

    def start(self, **constants: Any) -> None:
        pass_over("fairseq", "fairseq.optim")
        sys.modules.setdefault("omegaconf", MagicMock())
        vars(sys.modules["fairseq.optim"])["FairseqOptimizer"] = object
        from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
        from fairseq.optim.fp16_optimizer import FP16Optimizer

        self.scaler = DynamicLossScaler(**constants)
        self.optimizer = FP16Optimizer.__new__(FP16Optimizer)
        self.optimizer.scaler = self.scaler
        self.optimizer.fp32_optimizer = SimpleNamespace(state_dict=dict, load_state_dict=lambda *_: None)

    def get_scale(self) -> float:
        return float(self.scaler.loss_scale)

    def scale_loss(self, loss: float) -> float:
        return float(self.scaler.scale(loss))

    def step(self, scaled: Sequence[float]) -> Step:
        import torch

        held_by_float16(scaled)
        used = self.get_scale()
        try:  # as fp16_optimizer.py does: the norm of the scaled gradients, times 1 / scale
            self.scaler.check_overflow(float(torch.tensor(scaled).norm() * (1.0 / used)))
            self.scaler.update()
        except OverflowError:
            pass  # the trainer's signal to skip
        return Step(used, None, None, self.get_scale())

    def state_dict(self) -> object:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)
