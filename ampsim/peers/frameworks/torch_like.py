"""What peers with torch's GradScaler methods share: a real optimizer that notes what it was given."""

from collections.abc import Sequence
from typing import Any

from ampsim.peers.peer import Peer, Step

TORCH_CONSTANTS = {
    "init_scale": "init",
    "growth_factor": "growth",
    "backoff_factor": "backoff",
    "growth_interval": "interval",
}


def noting_sgd(gradients: Sequence[float]) -> tuple[Any, list[tuple[float, ...]]]:
    """Return torch's SGD over one parameter with these gradients, and the list that takes those of each step."""
    import torch

    param = torch.nn.Parameter(torch.zeros(len(gradients)))
    param.grad = torch.tensor(gradients, dtype=torch.float32)
    optimizer = torch.optim.SGD([param], lr=1.0)
    seen: list[tuple[float, ...]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(tuple(param.grad.tolist())))  # type: ignore[union-attr]
    return optimizer, seen


class TorchLike(Peer):
    """A scaler with torch's methods; `start` sets `scaler`."""

    constants = TORCH_CONSTANTS
    scaler: Any

    def scale(self) -> float:
        return float(self.scaler.get_scale())

    def scale_loss(self, loss: float) -> float:
        import torch

        return float(self.scaler.scale(torch.tensor(loss, dtype=torch.float32)))

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.scale()
        self.scale_loss(0.0)  # the scaler makes its tensors when it first scales
        optimizer, seen = noting_sgd(scaled)
        self.scaler.step(optimizer)
        self.scaler.update()
        return Step(used, bool(seen), seen[0] if seen else None, self.scale())

    def state(self) -> object:
        return self.scaler.state_dict()

    def load(self, state: object) -> None:
        self.scaler.load_state_dict(state)
