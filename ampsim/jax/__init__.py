"""Layer 1: loss scaling in JAX.

>>> from ampsim import Rule
>>> from ampsim.jax import LossScale
>>> loss_scale = LossScale.create(Rule(init_scale=1024.0, growth_interval=2))
>>> float(loss_scale.update(False).update(False).loss_scale)
2048.0

Start with `loss_scale`; `machine` is the reference state machine on arrays, and `exact_product` its multiplication.
``loops.md`` has training loops for optax, equinox, flax, and haiku.
"""

from ampsim.core.extras import needing as _needing

with _needing():
    from ampsim.jax.dlpack import to_jax, to_torch
    from ampsim.jax.finite import all_finite, select_tree
    from ampsim.jax.grad import Result, value_and_grad
    from ampsim.jax.loss_scale import DEVIATIONS, LossScale
    from ampsim.jax.optax import SkipState, skip_nonfinite
    from ampsim.jax.policy import PolicyScale
    from ampsim.jax.sweep import PolicySummary, Summary, sweep, sweep_policies

__all__ = [
    "DEVIATIONS",
    "LossScale",
    "PolicyScale",
    "PolicySummary",
    "Result",
    "SkipState",
    "Summary",
    "all_finite",
    "select_tree",
    "skip_nonfinite",
    "sweep",
    "sweep_policies",
    "to_jax",
    "to_torch",
    "value_and_grad",
]
