"""mmcv's scaler of the days before torch had one."""

from collections.abc import Sequence
from typing import Any

from ampsim.peers.frameworks.here import pass_over
from ampsim.peers.frameworks.torch_like import Optimized
from ampsim.peers.peer import Peer, Step


class MMCV(Peer):
    """LossScaler; the hook around it divides by the scale and skips."""

    name = "mmcv"
    requirement = "mmcv==1.7.2"
    environment = "torch-more"
    target = "mmcv.runner.fp16_utils.LossScaler"
    source = "https://github.com/open-mmlab/mmcv/blob/v1.7.2/mmcv/runner/fp16_utils.py#L334"
    dialect = "mmcv.runner.LossScaler"
    constants = {"init_scale": "init", "scale_window": "interval", "scale_factor": "factor"}
    patched = "mmcv.runner's __init__, which imports torchvision, is passed over"

    def start(self, **constants: Any) -> None:
        pass_over("mmcv.runner")
        from mmcv.runner.fp16_utils import LossScaler

        self.optimized = Optimized()
        self.scaler = LossScaler(**constants)

    def get_scale(self) -> float:
        return float(self.scaler.loss_scale)

    def scale_loss(self, loss: float) -> float:
        return loss * self.get_scale()

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        self.optimized.give(scaled)
        found = self.scaler.has_overflow([self.optimized.param])
        if not found:  # as hooks/optimizer.py does
            self.optimized.param.grad.div_(used)
            self.optimized.optimizer.step()
        self.scaler.update_scale(found)
        return self.optimized.noted(used, self.get_scale())

    def state_dict(self) -> object:
        return self.scaler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.scaler.load_state_dict(state)
