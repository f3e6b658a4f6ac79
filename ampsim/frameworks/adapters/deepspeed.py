"""DeepSpeed's scaler of ZeRO, and its two optimizers with a rule of their own, on its CPU
accelerator.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

from ampsim.frameworks.adapter import Adapter, Step, require_float16_range
from ampsim.frameworks.adapters.torch_like import Optimized, one_rank

_FP16 = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/fp16"
_NAMES = {"growth_interval": "scale_window", "hysteresis": "delayed_shift"}
_CONSTANTS = {
    "init_scale": "init_scale",
    "growth_interval": "growth_interval",
    "min_scale": "min_scale",
}


def _one_rank() -> None:
    """Make DeepSpeed's group of one process; without its kernel for ranks on one machine, which it
    would compile.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    one_rank()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.comm.init_distributed("gloo", verbose=False)


class DeepSpeedScaler(Adapter):
    """The scaler of ZeRO's optimizers; the optimizers check and divide the gradients."""

    name = "deepspeed"
    requirement = "deepspeed==0.19.8"
    target = "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"
    source = f"{_FP16}/loss_scaler.py#L187"
    dialect = "deepspeed.DynamicLossScaler"
    deviations = {
        "growth_waits_for_interval": "It waits for the window of clean iterations and doubles in the next, as its "
        f"docstring says: {_FP16}/loss_scaler.py#L215",
    }
    constants = {
        **_CONSTANTS,
        "hysteresis": "delayed_shift",
        "consecutive_hysteresis": "consecutive_hysteresis",
    }

    def start(self, **constants: Any) -> None:
        _one_rank()
        from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

        defaults_of_config = {
            "init_scale": 2.0**16,
            "scale_window": 1000,
            "min_scale": 1.0,
            "delayed_shift": 2,
        }
        given = {_NAMES.get(name, name): value for name, value in constants.items()}
        self.scaler = DynamicLossScaler(
            **{**defaults_of_config, "consecutive_hysteresis": False, **given}
        )

    def get_scale(self) -> float:
        return float(self.scaler.loss_scale)

    def scale_loss(self, loss: float) -> float:
        return loss * self.get_scale()

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        self.scaler.update_scale(not all(map(math.isfinite, scaled)))
        return Step(used, None, None, self.get_scale())


class _Optimizer(Adapter):
    """An optimizer of fp16 parameters, around torch's SGD."""

    requirement = "deepspeed==0.19.8"
    constants = _CONSTANTS
    floor = 1.0  # min_scale, unless `start` is given one

    def wrap(self, optimizer: Any, **arguments: Any) -> Any:
        """Return DeepSpeed's optimizer around this one."""
        raise NotImplementedError

    def start(self, **constants: Any) -> None:
        _one_rank()
        from deepspeed.runtime.fp16 import loss_scaler as words

        self.optimized = Optimized("float16")
        arguments = {
            words.INITIAL_LOSS_SCALE: constants.get("init_scale", 2.0**32),
            words.SCALE_WINDOW: constants.get("growth_interval", 1000),
            words.MIN_LOSS_SCALE: constants.get("min_scale", self.floor),
        }
        self.wrapped = self.wrap(
            self.optimized.optimizer,
            dynamic_loss_scale=True,
            dynamic_loss_args=arguments,
        )

    def get_scale(self) -> float:
        return float(self.wrapped.loss_scale_config.cur_scale)

    def scale_loss(self, loss: float) -> float:
        return loss * self.get_scale()  # inside backward(), which it calls itself

    def step(self, scaled: Sequence[float]) -> Step:
        require_float16_range(scaled)
        used = self.get_scale()
        self.optimized.give(scaled)
        self.wrapped.step()
        return self.optimized.noted(used, self.get_scale())

    def state_dict(self) -> object:
        saved = self.wrapped.state_dict()
        return {
            name: value
            for name, value in saved.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }

    def load_state_dict(self, state: object) -> None:
        self.wrapped.load_state_dict({**self.wrapped.state_dict(), **state})  # type: ignore[dict-item]


class Fused(_Optimizer):
    """FP16_Optimizer, which has flat copies of the parameters."""

    name = "deepspeed-fp16"
    target = "deepspeed.runtime.fp16.fused_optimizer.FP16_Optimizer"
    source = f"{_FP16}/fused_optimizer.py#L34"
    dialect = "deepspeed.FP16_Optimizer"

    def wrap(self, optimizer: Any, **arguments: Any) -> Any:
        from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer

        return FP16_Optimizer(optimizer, verbose=False, **arguments)


class Unfused(_Optimizer):
    """FP16_UnfusedOptimizer, which has a copy of each parameter."""

    name = "deepspeed-unfused"
    target = "deepspeed.runtime.fp16.unfused_optimizer.FP16_UnfusedOptimizer"
    source = f"{_FP16}/unfused_optimizer.py#L27"
    dialect = "deepspeed.FP16_UnfusedOptimizer"
    floor = 0.25

    def wrap(self, optimizer: Any, **arguments: Any) -> Any:
        from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

        return FP16_UnfusedOptimizer(optimizer, verbose=False, **arguments)
