"""Loss scaling in JAX.

>>> from ampsim import Rule
>>> from ampsim.jax import LossScale
>>> loss_scale = LossScale.create(Rule(init_scale=1024.0, growth_interval=2))
>>> float(loss_scale.update(False).update(False).loss_scale)
2048.0

Start with `loss_scale`, or with `optax` for a transformation that needs no rule; `machine` is the
reference state machine on arrays, and `exact_product` its multiplication. ``loops.md`` has training
loops for optax, equinox, flax, and haiku.
"""

from ampsim.core.extras import needing as _needing

with _needing():
    from ampsim.jax.grad import Result, value_and_grad
    from ampsim.jax.loss_scale import DEVIATIONS, LossScale
    from ampsim.jax.multi_steps import MultiSteps
    from ampsim.jax.optax import DynamicLossScaleState, dynamic_loss_scale, scale_loss
    from ampsim.jax.policy import PolicyScale
    from ampsim.jax.sweep import Summary, sweep
    from ampsim.jax.trees import all_finite, select_tree

__all__ = [
    "DEVIATIONS",
    "DynamicLossScaleState",
    "LossScale",
    "MultiSteps",
    "PolicyScale",
    "Result",
    "Summary",
    "all_finite",
    "dynamic_loss_scale",
    "scale_loss",
    "select_tree",
    "sweep",
    "value_and_grad",
]
