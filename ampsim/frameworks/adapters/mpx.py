"""mpx.DynamicLossScaling, by mpx.filter_grad and mpx.optimizer_update as in its README, outside of
jit.
"""

from collections.abc import Sequence
from typing import Any

from ampsim.frameworks.adapter import Step, require_float16_range
from ampsim.frameworks.adapters.jax_like import (
    JaxLike,
    float32,
    floats,
    leaves,
    prescribed,
    with_leaves,
)

_SOURCE = (
    "https://github.com/Data-Science-in-Mechanical-Engineering/mixed_precision_for_JAX/blob/"
    "8b5262c2af80480540ce39aca0436e6b638be0d3/mpx/_loss_scaling.py"
)


class Mpx(JaxLike):
    """The scaler of mixed-precision-for-jax; it casts the parameters to float16, and so rounds
    their gradients.
    """

    name = "mpx"
    requirement = "mixed-precision-for-jax==0.1.8"
    target = "mpx.DynamicLossScaling"
    source = f"{_SOURCE}#L66"
    dialect = "mpx.DynamicLossScaling"
    constants = {
        "loss_scaling": "init_scale",
        "period": "growth_interval",
        "factor": "factor",
        "min_loss_scaling": "min_loss_scaling",
    }

    deviations = {
        "scale_stays_power_of_two": f"It clips its scale to the largest number of float16: {_SOURCE}#L166",
        "get_scale_matches_scale": f"It multiplies by the scale rounded to float16: {_SOURCE}#L112",
    }

    def start(self, **constants: Any) -> None:
        import jax.numpy as jnp
        import mpx

        given = {"loss_scaling": 2.0**15, "min_loss_scaling": 1.0, **constants}
        arrays = {
            name: jnp.float32(given[name])
            for name in ("loss_scaling", "min_loss_scaling")
        }
        self.scaler = mpx.DynamicLossScaling(**{**given, **arrays})
        self._loss = prescribed()

    def get_scale(self) -> float:
        return float(self.scaler.loss_scaling)

    def step(self, scaled: Sequence[float]) -> Step:
        import mpx
        import optax

        require_float16_range(scaled)
        used = self.get_scale()
        params = float32([0.0] * len(scaled))
        descent = optax.sgd(1.0)
        gradients_of = mpx.filter_grad(self._loss, self.scaler)
        self.scaler, finite, gradients = gradients_of(params, float32(scaled))
        params, _ = mpx.optimizer_update(
            params, descent, descent.init(params), gradients, finite
        )
        return Step(
            used, bool(finite), floats(-params) if finite else None, self.get_scale()
        )

    def state_dict(self) -> object:
        import equinox

        return leaves(equinox.filter(self.scaler, equinox.is_array))

    def load_state_dict(self, state: object) -> None:
        import equinox

        arrays, rest = equinox.partition(self.scaler, equinox.is_array)
        self.scaler = equinox.combine(with_leaves(arrays, state), rest)
