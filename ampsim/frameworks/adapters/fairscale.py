"""fairscale's scaler that has one scale per layer."""

from collections.abc import Sequence
from typing import Any

from ampsim.frameworks.adapter import Adapter, Step
from ampsim.frameworks.adapters.torch_like import TORCH_CONSTANTS, Optimized


class FairscaleLayerwise(Adapter):
    """LayerwiseGradientScaler with one scaled layer of two, by the calls of its own example."""

    name = "fairscale-layerwise"
    requirement = "fairscale==0.4.13"
    target = "fairscale.optim.layerwise_gradient_scaler.LayerwiseGradientScaler"
    source = "https://github.com/facebookresearch/fairscale/blob/v0.4.13/fairscale/optim/layerwise_gradient_scaler.py#L60"
    dialect = "fairscale.LayerwiseGradientScaler"
    constants = {**TORCH_CONSTANTS, "min_scale": "min_scale", "max_scale": "max_scale"}
    deviations = {
        "unscale_uses_scale_of_loss": "It scales what enters a layer in backward, not the loss: "
        + source
    }

    def start(self, init_scale: float = 1.0, **constants: Any) -> None:
        import torch
        from fairscale.optim.layerwise_gradient_scaler import LayerwiseGradientScaler

        self._model: Any = torch.nn.Sequential(
            *(torch.nn.Linear(1, 1, bias=False) for _ in range(2))
        )
        self.scaler: Any = LayerwiseGradientScaler(
            self._model, {"0": init_scale}, **constants
        )

    def get_scale(self) -> float:
        return float(self.scaler.layer_info[0].scaling_factor)

    def scale_loss(self, loss: float) -> float:
        import torch

        for layer in self._model:
            layer.weight = torch.nn.Parameter(torch.ones(1, 1))
        self.scaler.scale()
        (self._model(torch.ones(1, 1)) * loss).sum().backward()
        scaled = float(
            self._model[0].weight.grad
        )  # what the second layer sends into the first one is multiplied
        self.scaler.unscale()
        return scaled

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        optimized = Optimized()
        optimized.give(scaled)
        self._model[0].weight = optimized.param
        self.scaler.scale()
        self.scaler.unscale()
        self.scaler.step(optimized.optimizer)
        return optimized.noted(used, self.get_scale())
