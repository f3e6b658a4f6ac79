"""fairscale's two scalers: the sharded one, torch's with an all-reduce of its flags, and one scale per layer."""

from collections.abc import Sequence
from typing import Any

from ampsim.peers.peer import Peer, Step

_FAIRSCALE = "https://github.com/facebookresearch/fairscale/blob/v0.4.13/fairscale/optim"


class FairscaleSharded(Peer):
    """ShardedGradScaler on the CPU, where it updates the scale by a rule of its own."""

    name = "fairscale-sharded"
    requirement = "fairscale==0.4.13"
    environment = "numpy2"
    target = "fairscale.optim.grad_scaler.ShardedGradScaler"
    source = f"{_FAIRSCALE}/grad_scaler.py#L71"
    dialect = "torch.fsdp.ShardedGradScaler[cpu]"  # which was made of it
    constants = {
        "init_scale": "init",
        "growth_factor": "growth",
        "backoff_factor": "backoff",
        "growth_interval": "interval",
    }
    patched = (
        "amp_definitely_not_available, its own and torch.cuda.amp.common's, says that there is a GPU, or the scaler "
        "turns itself off; Tensor.cuda, by which it copies the flag for the all-reduce, copies on the CPU"
    )

    def start(self, **constants: Any) -> None:
        import torch
        from fairscale.optim import grad_scaler

        torch.cuda.amp.common.amp_definitely_not_available = lambda: False
        grad_scaler.amp_definitely_not_available = lambda: False
        torch.Tensor.cuda = torch.Tensor.clone  # type: ignore[method-assign, assignment]
        if not torch.distributed.is_initialized():
            alone: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
            torch.distributed.init_process_group("gloo", store=alone, rank=0, world_size=1)
        self.scaler: Any = grad_scaler.ShardedGradScaler(process_group=torch.distributed.group.WORLD, **constants)

    def scale(self) -> float:
        return float(self.scaler.get_scale())

    def scale_loss(self, loss: float) -> float:
        import torch

        return float(self.scaler.scale(torch.tensor(loss, dtype=torch.float32)))

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.scale()
        self.scale_loss(0.0)  # the scaler makes its tensors when it first scales
        optimizer, seen = _noting_sgd(scaled)
        self.scaler.step(optimizer)
        self.scaler.update()
        return Step(used, bool(seen), seen[0] if seen else None, self.scale())

    def state(self) -> object:
        return self.scaler.state_dict()

    def load(self, state: object) -> None:
        self.scaler.load_state_dict(state)


class FairscaleLayerwise(Peer):
    """LayerwiseGradientScaler with one scaled layer of two, by the calls of its own example."""

    name = "fairscale-layerwise"
    requirement = "fairscale==0.4.13"
    environment = "numpy2"
    target = "fairscale.optim.layerwise_gradient_scaler.LayerwiseGradientScaler"
    source = f"{_FAIRSCALE}/layerwise_gradient_scaler.py#L60"
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
        optimizer, seen = _noting_sgd(scaled)
        self._model[0].weight = optimizer.param_groups[0]["params"][0]
        self.scaler.scale()
        self.scaler.unscale()
        self.scaler.step(optimizer)
        return Step(used, bool(seen), seen[0] if seen else None, self.scale())


def _noting_sgd(gradients: Sequence[float]) -> tuple[Any, list[tuple[float, ...]]]:
    """Return torch's SGD over one parameter with these gradients, and the list that takes those of each step."""
    import torch

    param: Any = torch.nn.Parameter(torch.zeros(len(gradients)))
    param.grad = torch.tensor(gradients, dtype=torch.float32)
    optimizer = torch.optim.SGD([param], lr=1.0)
    seen: list[tuple[float, ...]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(tuple(param.grad.tolist())))
    return optimizer, seen
