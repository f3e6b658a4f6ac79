"""jaxamp.DynamicScalerState, by jaxamp.dynamic_scale_grad as in its README, outside of jit."""

from collections.abc import Sequence
from typing import Any

from ampsim.frameworks.adapter import Step
from ampsim.frameworks.adapters.jax_like import JaxLike, float32, floats, prescribed


class Jaxamp(JaxLike):
    """jaxamp's scaler, which leaves the skip to its caller."""

    name = "jaxamp"
    requirement = "jaxamp==0.0.4"
    target = "jaxamp.DynamicScalerState"
    source = (
        "https://github.com/acutkosky/jaxamp/blob/36f958fe862d968c55cd9683e5ea8bdacce867c1/"
        "src/jaxamp/_dynamic_scaler.py#L27"
    )
    dialect = "jaxamp.DynamicScalerState"
    constants = {
        "scaler": "init_scale",
        "patience": "growth_interval",
        "adjust_factor": "factor",
    }
    deviations = {
        "growth_waits_for_interval": "It waits for the patience of clean iterations and grows in the next, as the "
        "comment at its field says: https://github.com/acutkosky/jaxamp/blob/"
        "36f958fe862d968c55cd9683e5ea8bdacce867c1/src/jaxamp/_dynamic_scaler.py#L28",
    }

    def start(self, **constants: Any) -> None:
        import jaxamp

        self.scaler = jaxamp.DynamicScalerState(**constants)
        self._gradients_of = jaxamp.dynamic_scale_grad(prescribed(), filter=False)

    def get_scale(self) -> float:
        return float(float32([self.scaler.scaler])[0])

    def scale_loss(self, loss: float) -> float:
        from jaxamp._dynamic_scaler import default_scale_fn, set_scaler_types

        return float(
            default_scale_fn(float32([loss])[0], set_scaler_types(self.scaler))
        )

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        params = float32([0.0] * len(scaled))
        self.scaler, unscaled = self._gradients_of(
            params, float32(scaled), dynamic_scaler_state=self.scaler
        )
        return Step(used, None, floats(unscaled), self.get_scale())
