"""ampsim.jax.LossScale under jit."""

import dataclasses
from typing import Any

from ampsim import Rule, State, __version__
from ampsim.frameworks.adapters.jax_like import JaxLike, compiled
from ampsim.frameworks.adapters.torch_like import TORCH_CONSTANTS


class AmpsimJax(JaxLike):
    """The scaler of ampsim in JAX."""

    name = "ampsim-jax"
    requirement = "ampsim==" + __version__
    target = "ampsim.jax.LossScale"
    source = "ampsim/jax/loss_scale.py"
    dialect = "torch.amp.GradScaler"
    constants = TORCH_CONSTANTS

    def start(self, **constants: Any) -> None:
        from ampsim.jax import LossScale

        self.scaler = LossScale.create(Rule(**constants))
        self.descend = compiled(_step)

    def get_scale(self) -> float:
        return self.scaler.state.scale  # type: ignore[no-any-return]

    def state_dict(self) -> object:
        return dataclasses.asdict(self.scaler.state)

    def load_state_dict(self, state: Any) -> None:
        from ampsim.jax import LossScale

        state = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in state.items()
        }
        self.scaler = LossScale.from_state(self.scaler.rule, State(**state))


def _step(scaler: Any, params: Any, scaled: Any) -> tuple[Any, Any, Any]:
    from ampsim.jax import all_finite, select_tree

    gradients = scaler.unscale(scaled)
    finite = all_finite(gradients)
    return (
        select_tree(finite, params - gradients, params),
        finite,
        scaler.update(~finite),
    )
