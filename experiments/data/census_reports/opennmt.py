"""A run that is resumed from its checkpoint has the loss scale that it had."""

from typing import Any

import torch


class Optimizer:
    """An optimizer and a scaler, of which the state holds the optimizer's alone."""

    def __init__(self) -> None:
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        self.scaler = torch.amp.GradScaler("cpu")

    def state_dict(self) -> dict[str, Any]:
        return {
            "training_step": 1,
            "decay_step": 1,
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])


def test_a_resumed_run_has_the_scale_that_it_had() -> None:
    run, resumed = Optimizer(), Optimizer()
    (weight,) = run.optimizer.param_groups[0]["params"]
    run.scaler.scale(
        weight.sum() * float("inf")
    ).backward()  # an overflow: the scale falls
    run.scaler.step(run.optimizer)
    run.scaler.update()
    resumed.load_state_dict(run.state_dict())
    assert resumed.scaler.get_scale() == run.scaler.get_scale()
