"""ampsim.jax.LossScale, ours, under jit."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ampsim.peers.frameworks.jax_like import compiled, float32, floats
from ampsim.peers.peer import Peer, Step


class AmpsimJax(Peer):
    """Our scaler in JAX."""

    name = "ampsim-jax"
    requirement = "ampsim==0.1.0.dev0"
    target = "ampsim.jax.LossScale"
    source = "ampsim/jax/loss_scale.py"
    dialect = "torch.amp.GradScaler"
    constants = {
        "init_scale": "init",
        "growth_factor": "growth",
        "backoff_factor": "backoff",
        "growth_interval": "interval",
    }

    def start(self, **constants: Any) -> None:
        from ampsim import Rule
        from ampsim.jax import LossScale

        self.scaler: Any = LossScale.create(Rule(**constants))

    def get_scale(self) -> float:
        return self.scaler.state.scale  # type: ignore[no-any-return]

    def scale_loss(self, loss: float) -> float:
        return float(self.scaler.scale(float32([loss])[0]))

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        params, finite, self.scaler = compiled(_step)(self.scaler, float32([0.0] * len(scaled)), float32(scaled))
        return Step(used, bool(finite), floats(-params) if finite else None, self.get_scale())

    def state_dict(self) -> object:
        return dataclasses.asdict(self.scaler.state)

    def load_state_dict(self, state: Any) -> None:
        from ampsim import State
        from ampsim.jax import LossScale

        state = {name: tuple(value) if isinstance(value, list) else value for name, value in state.items()}
        self.scaler = LossScale.from_state(self.scaler.rule, State(**state))


def _step(scaler: Any, params: Any, scaled: Any) -> tuple[Any, Any, Any]:
    from ampsim.jax import all_finite, select_tree

    gradients = scaler.unscale(scaled)
    finite = all_finite(gradients)
    return select_tree(finite, params - gradients, params), finite, scaler.update(~finite)
