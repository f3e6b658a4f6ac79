"""Shared code of torch-like adapters: one parameter under an SGD that records its gradients."""

from collections.abc import Sequence
from typing import Any

from ampsim.frameworks.adapter import Adapter, Step

TORCH_CONSTANTS = {
    "init_scale": "init_scale",
    "growth_factor": "growth_factor",
    "backoff_factor": "backoff_factor",
    "growth_interval": "growth_interval",
}


def one_rank() -> None:
    """Make torch's process group of one process, without a network, unless there is a group."""
    from torch.distributed import HashStore, init_process_group, is_initialized  # type: ignore[attr-defined]

    if not is_initialized():
        init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


class Optimized:
    """One parameter under an SGD that records the gradients of its first step.

    It has 64 elements, the maximum number of gradients, as some frameworks lay out parameters once.
    """

    count = 0
    seen: tuple[float, ...] | None = None

    def __init__(self, dtype: str = "float32") -> None:
        import torch

        self.param: Any = torch.nn.Parameter(
            torch.zeros(64, dtype=getattr(torch, dtype))
        )
        self.optimizer = torch.optim.SGD([self.param], lr=1.0)
        self.optimizer.register_step_pre_hook(self.note)

    def give(self, scaled: Sequence[float]) -> None:
        """Set these gradients, pad with zeros, and clear the recorded ones."""
        import torch

        self.count, self.seen, self.param.grad = (
            len(scaled),
            None,
            torch.zeros_like(self.param),
        )
        self.param.grad[: self.count] = torch.tensor(scaled)

    def note(self, optimizer: Any, *_: Any) -> None:
        """Record the gradients of an optimizer's parameters, which may be copies."""
        params = [
            param for group in optimizer.param_groups for param in group["params"]
        ]
        seen = [number for param in params for number in param.grad.float().tolist()]
        self.seen = self.seen or tuple(seen[: self.count])

    def noted(self, used: float, scale: float) -> Step:
        """Return the iteration as the optimizer observed it."""
        return Step(used, self.seen is not None, self.seen, scale)


class TorchLike(Adapter):
    """Base class for scalers with torch's methods; `make` creates the scaler."""

    constants = TORCH_CONSTANTS
    scaler: Any
    optimized: Optimized

    def make(self, **constants: Any) -> Any:
        """Return a new scaler."""
        raise NotImplementedError

    def start(self, **constants: Any) -> None:
        self.scaler, self.optimized = self.make(**constants), Optimized()

    def get_scale(self) -> float:
        return float(self.scaler.get_scale())

    def scale_loss(self, loss: float) -> float:
        import torch

        return float(self.scaler.scale(torch.tensor(loss, dtype=torch.float32)))

    def iterate(self) -> None:
        """Step the optimizer by way of the scaler, and update."""
        self.scaler.step(self.optimized.optimizer)
        self.scaler.update()

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        self.scale_loss(0.0)  # the scaler makes its tensors when it first scales
        self.optimized.give(scaled)
        self.iterate()
        return self.optimized.noted(used, self.get_scale())

    def state_dict(self) -> object:
        return self.scaler.state_dict()

    def load_state_dict(self, state: object) -> None:
        self.scaler.load_state_dict(state)
