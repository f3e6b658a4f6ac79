"""flax.training.dynamic_scale.DynamicScale, under jit as in its own example."""

from collections.abc import Sequence
from typing import Any

from ampsim.frameworks.adapter import Adapter, Step
from ampsim.frameworks.adapters.jax_like import compiled, float32, floats, prescribed


class Flax(Adapter):
    """flax's scaler: a pytree whose value_and_grad scales, differentiates, divides, checks and
    updates.
    """

    name = "flax"
    requirement = "flax==0.12.8"
    target = "flax.training.dynamic_scale.DynamicScale"
    source = (
        "https://github.com/google/flax/blob/v0.12.8/flax/training/dynamic_scale.py#L36"
    )
    dialect = "flax.DynamicScale"
    constants = {
        "scale": "init_scale",
        "growth_factor": "growth_factor",
        "backoff_factor": "backoff_factor",
        "growth_interval": "growth_interval",
        "minimum_scale": "minimum_scale",
    }

    def start(self, **constants: Any) -> None:
        from flax.training.dynamic_scale import DynamicScale

        self.scaler: Any = DynamicScale(**constants)

    def get_scale(self) -> float:
        return float(float32([self.scaler.scale])[0])

    def scale_loss(self, loss: float) -> float:
        return float(
            self.scaler.scale * float32([loss])[0]
        )  # as value_and_grad does inside

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        gradients = float32(scaled)
        self.scaler, finite, _, unscaled = compiled(_step)(
            self.scaler, float32([0.0] * len(scaled)), gradients
        )
        return Step(
            used, bool(finite), floats(unscaled) if finite else None, self.get_scale()
        )

    def state_dict(self) -> object:
        from flax.serialization import to_state_dict

        return {
            name: float(value) for name, value in to_state_dict(self.scaler).items()
        }

    def load_state_dict(self, state: object) -> None:
        from flax.serialization import from_state_dict

        self.scaler = from_state_dict(self.scaler, state)


def _step(scaler: Any, params: Any, scaled: Any) -> Any:
    return scaler.value_and_grad(prescribed())(params, scaled)
