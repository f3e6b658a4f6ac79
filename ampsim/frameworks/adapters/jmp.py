"""jmp.DynamicLossScale, by the steps of its README, outside of jit and under it; haiku scales by it
too.
"""

from typing import Any

from ampsim.frameworks.adapters.jax_like import JaxLike, compiled


class Jmp(JaxLike):
    """jmp's scaler outside of jit."""

    name = "jmp"
    requirement = "jmp==0.0.4"
    target = "jmp.DynamicLossScale"
    source = (
        "https://github.com/google-deepmind/jmp/blob/v0.0.4/jmp/_src/loss_scale.py#L79"
    )
    dialect = "jmp.DynamicLossScale"
    constants = {
        "loss_scale": "init_scale",
        "period": "growth_interval",
        "factor": "factor",
        "min_loss_scale": "min_loss_scale",
    }

    def start(self, **constants: Any) -> None:
        import jax.numpy as jnp
        import jmp

        for name in {"loss_scale", "min_loss_scale"} & constants.keys():
            constants[name] = jnp.float32(constants[name])
        self.scaler = jmp.DynamicLossScale(
            **{"loss_scale": jnp.float32(2.0**15), **constants}
        )
        self.descend = _step

    def get_scale(self) -> float:
        return float(self.scaler.loss_scale)


class JmpJit(Jmp):
    """jmp's scaler as its README uses it: an argument and a result of a compiled step."""

    name = "jmp-jit"
    same_class = "jmp"
    options = {"jit": True}

    def start(self, **constants: Any) -> None:
        super().start(**constants)
        self.descend = compiled(_step)


def _step(scaler: Any, params: Any, scaled: Any) -> tuple[Any, Any, Any]:
    import jmp

    gradients = scaler.unscale(scaled)
    finite = jmp.all_finite(gradients)
    return (
        jmp.select_tree(finite, params - gradients, params),
        finite,
        scaler.adjust(finite),
    )
