"""DeepSpeed's ZeRO, whose engine scales, steps and updates: each rank's scaler and its gradients, for `check_ranks`.

check_ranks(deepspeed.make, gradients=deepspeed.Zero2, without=deepspeed.WITHOUT)
"""

import os
from typing import Any, ClassVar

import deepspeed
import torch

from ampsim.testing.ranks.gradients import INF, Optimizer, Sharded, Sum, World, bits

WITHOUT = ("fused", "unscale_", "state_dict", "optimizers")  # an engine has one optimizer, and its ranks a file each
FP16 = {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 2, "hysteresis": 1}


class Zero1(Sharded):
    """An optimizer in an engine of one parameter: row r of its state is on rank r, an empty rank has none."""

    on_threads = again = False
    stage: ClassVar[int] = 1
    engine: ClassVar[Any] = None  # of this process

    def __init__(self, optimizer: Optimizer, world: World, *, empty: bool) -> None:
        self.world, self.rows = world, world.size - empty
        model = Sum([(self.rows, 2)])
        self.own([*model.parameters()], optimizer)
        os.environ.update(RANK=str(world.rank), LOCAL_RANK=str(world.rank), WORLD_SIZE=str(world.size))
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": self.stage},
            "zero_allow_untested_optimizer": True,
            "fp16": FP16,
        }
        Zero1.engine, *_ = deepspeed.initialize(model=model, optimizer=self.optimizer, config=config)

    def give(self, value: float, *, bad: bool, empty: bool) -> None:
        """Leave gradients of a value; the engine multiplies the loss by the scale."""
        factor = torch.full((self.rows, 2), value / self.engine.optimizer.cur_scale, dtype=torch.float16)
        if bad:
            factor[self.world.rank] = INF
        self.engine.backward(self.engine([factor]))

    def held(self) -> list[object]:
        """Return every bit that this rank has of the parameters, in both precisions."""
        return [*map(bits, self._parts())]

    def finite(self) -> bool:
        return all(bool(part.isfinite().all()) for part in self._parts())

    def _parts(self) -> list[torch.Tensor]:
        masters = [param for group in self.optimizer.param_groups for param in group["params"]]
        return [*(getattr(param, "ds_tensor", param) for param in self.params), *masters]


class Zero2(Zero1):
    """The same with gradients that are sharded, too."""

    stage = 2


class Zero3(Zero1):
    """The same with parameters that are sharded, too."""

    stage = 3


class Engine:
    """The engine as a scaler."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return what the engine's backward pass makes of a loss."""
        return loss * self.get_scale()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step or skip, and update the scale."""
        Zero1.engine.step()

    def update(self) -> None:
        """Do nothing: the step has."""

    def get_scale(self) -> float:
        """Return the scale of the next loss."""
        return float(Zero1.engine.optimizer.cur_scale)


def make(group: object) -> Engine:
    """Return the engine of this process; it is on all ranks there are."""
    return Engine()
