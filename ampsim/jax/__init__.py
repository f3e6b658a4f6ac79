"""Floor 1: loss scaling in JAX.

>>> from ampsim import Rule
>>> from ampsim.jax import LossScale
>>> loss_scale = LossScale.create(Rule(init_scale=1024.0, growth_interval=2))
>>> float(loss_scale.update(False).update(False).loss_scale)
2048.0

Start with `loss_scale`; `machine` is the reference machine on arrays and `exact_product` its one product. ``loops.md``
has a training loop for optax, equinox, flax and haiku each.
"""

from ampsim.jax.dlpack import to_jax as to_jax
from ampsim.jax.dlpack import to_torch as to_torch
from ampsim.jax.finite import all_finite as all_finite
from ampsim.jax.finite import select_tree as select_tree
from ampsim.jax.grad import Result as Result
from ampsim.jax.grad import value_and_grad as value_and_grad
from ampsim.jax.loss_scale import DEVIATIONS as DEVIATIONS
from ampsim.jax.loss_scale import LossScale as LossScale
from ampsim.jax.optax import SkipState as SkipState
from ampsim.jax.optax import skip_nonfinite as skip_nonfinite
from ampsim.jax.policy import PolicyScale as PolicyScale
from ampsim.jax.sweep import PolicySummary as PolicySummary
from ampsim.jax.sweep import Summary as Summary
from ampsim.jax.sweep import sweep as sweep
from ampsim.jax.sweep import sweep_policies as sweep_policies
