"""The state of an fp8 layer comes back as a gradient and is none: a loss scale leaves it as it is.

What the forward pass measured does not depend on the loss scale, and what the backward pass
measured is the loss scale times as large.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from ampsim.jax.dynamic_scale import DynamicScale
from tests.jax.helpers import bits

pytest.importorskip("flax")

STATE = "_overwrite_with_gradient"


@functools.cache
def measured(scale: float, scaler: Any = None) -> dict[str, Any]:
    """Return the fp8 state after one step, below a scaler or none."""
    from flax import linen as nn

    layer, x = (
        nn.Dense(4, use_bias=False, dot_general_cls=nn.Fp8DirectDotGeneralOp),
        jnp.full((4, 4), 3.0),
    )

    def loss(state: Any) -> Any:
        return layer.apply(state, x).sum()

    @jax.jit
    def grads(key: Any) -> Any:
        state = layer.init(key, x)
        return (
            scaler(scale=jnp.float32(scale)).value_and_grad(loss)(state)[3]
            if scaler
            else jax.grad(loss)(state)
        )

    found: dict[str, Any] = grads(jax.random.key(0))[STATE]["Fp8DirectDotGeneralOp_0"]
    return found


def test_fp8_state_is_not_unscaled() -> None:
    scale = 2.0**10
    below, alone = measured(scale, DynamicScale), measured(1.0)
    for name, array in alone.items():
        factor = scale if name == "output_grad_amax_history" else 1.0
        assert below[name].tolist() == (factor * array).tolist(), name


def test_parameters_beside_fp8_state_are_unscaled() -> None:
    from ampsim import Rule
    from ampsim.jax import LossScale

    grads = {"params": {"w": jnp.array([8.0])}, STATE: {"scale": jnp.array([8.0])}}
    for nest in (lambda tree: tree, lambda tree: {"model": [tree]}):
        unscaled = LossScale.create(Rule(init_scale=4.0)).unscale(nest(grads))
        expected = {
            "params": {"w": jnp.array([2.0])},
            STATE: {"scale": jnp.array([8.0])},
        }
        assert bits(unscaled) == bits(nest(expected))
