"""fairscale's scaler with one scale per layer; its sharded one moves flags to a GPU, on which alone it runs."""

from collections.abc import Sequence
from typing import Any

from ampsim.peers.frameworks.torch_like import Optimized
from ampsim.peers.peer import Peer, Step


class FairscaleLayerwise(Peer):
    """LayerwiseGradientScaler with one scaled layer of two, by the calls of its own example."""

    name = "fairscale-layerwise"
    requirement = "fairscale==0.4.13"
    environment = "numpy2"
    target = "fairscale.optim.layerwise_gradient_scaler.LayerwiseGradientScaler"
    source = (
        "https://github.com/facebookresearch/fairscale/blob/v0.4.13/fairscale/optim/layerwise_gradient_scaler.py#L60"
    )
    dialect = "fairscale.LayerwiseGradientScaler"
    constants = {
        "init_scale": "init",
        "growth_factor": "growth",
        "backoff_factor": "backoff",
        "growth_interval": "interval",
        "min_scale": "min_scale",
        "max_scale": "max_scale",
    }

    def start(self, init_scale: float = 1.0, **constants: Any) -> None:
        import torch
        from fairscale.optim.layerwise_gradient_scaler import LayerwiseGradientScaler

        self._model: Any = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(2)))
        self.scaler: Any = LayerwiseGradientScaler(self._model, {"0": init_scale}, **constants)

    def scale(self) -> float:
        return float(self.scaler.layer_info[0].scaling_factor)

    def scale_loss(self, loss: float) -> float:
        import torch

        for layer in self._model:
            layer.weight = torch.nn.Parameter(torch.ones(1, 1))
        self.scaler.scale()
        (self._model(torch.ones(1, 1)) * loss).sum().backward()
        scaled = float(self._model[0].weight.grad)  # what the second layer sends into the first one is multiplied
        self.scaler.unscale()
        return scaled

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.scale()
        optimized = Optimized()
        optimized.give(scaled)
        self._model[0].weight = optimized.param
        self.scaler.scale()
        self.scaler.unscale()
        self.scaler.step(optimized.optimizer)
        return optimized.step(used, self.scale())
