"""`value_and_grad` has flax's shape and the true loss."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampsim import Rule, State
from ampsim.jax import LossScale
from tests.jax.helpers import enable_x64

RULE = Rule(1024.0, growth_interval=2)


def loss(p, x):
    return jnp.sum(p["w"].astype(jnp.float16) * x).astype(jnp.float32)


P = {"w": jnp.array([1.0, 2.0])}
X = jnp.array([3.0, 4.0], jnp.float16)


@pytest.mark.framework("flax")
@pytest.mark.parametrize("scale", [1024.0, 3000.0])
@pytest.mark.parametrize("poison", [1.0, math.inf, math.nan, 60000.0])
def test_value_and_grad_matches_flax(scale, poison) -> None:
    from flax.training.dynamic_scale import DynamicScale

    def fun(p, x):
        return loss(p, x * jnp.float16(poison)), {"aux": x}

    ours = LossScale.from_state(
        Rule(growth_interval=2001), State(scale)
    ).value_and_grad(fun, has_aux=True)(P, X)
    theirs = DynamicScale(scale=jnp.float32(scale)).value_and_grad(fun, has_aux=True)(
        P, X
    )
    assert float(ours.loss_scale.loss_scale) == float(theirs.dynamic_scale.scale)
    assert bool(ours.finite) == bool(theirs.finite)
    assert ours.aux[1]["aux"] is X
    if ours.finite:
        np.testing.assert_allclose(ours.grad["w"], theirs.grad["w"], rtol=1e-6)
        np.testing.assert_allclose(ours.aux[0], theirs.aux[0], rtol=1e-6)


def test_loss_is_unscaled_despite_overflow() -> None:
    scaler = LossScale.from_state(Rule(), State(2.0**100))
    new, finite, value, _ = scaler.value_and_grad(lambda p: p * 2.0**100)(2.0)
    assert (float(value), bool(finite), float(new.loss_scale)) == (
        2.0**101,
        False,
        2.0**99,
    )


def test_overflow_during_unscale_is_found() -> None:
    scaler = LossScale.from_state(Rule(), State(2.0**-10))
    result = scaler.value_and_grad(lambda p: p * jnp.float32(3e38) * 4)(
        jnp.float32(0.0)
    )
    assert not result.finite
    assert float(result.loss_scale.loss_scale) == 2.0**-11


def test_argnums_has_aux_and_keywords() -> None:
    def fun(a, b, *, c):
        return a * b * c, "static"[0] and c

    differentiate = LossScale.create(RULE).value_and_grad(
        fun, argnums=(0, 1), has_aux=True
    )
    assert differentiate.__name__ == "fun"
    result = differentiate(2.0, 3.0, c=4.0)
    assert tuple(map(float, result.grad)) == (12.0, 8.0)
    assert tuple(map(float, result.aux)) == (24.0, 4.0)


def test_vmap_axis_with_separate_parameters() -> None:
    run = lambda p, x: LossScale.create(RULE).value_and_grad(loss, axis_name="d")(p, x)  # noqa: E731
    both = jax.tree.map(lambda p: jnp.stack([p, p]), P)
    result = jax.jit(jax.vmap(run, axis_name="d"))(both, jnp.stack([X, 3 * X]))
    assert result.grad["w"].tolist() == [[6.0, 8.0]] * 2


def test_worker_mean_is_computed_in_float32() -> None:
    scaler = LossScale.create(Rule(2.0**10))
    fun = lambda p, x: (p * x).astype(jnp.float32)  # noqa: E731
    run = lambda x: scaler.value_and_grad(fun, axis_name="d")(jnp.float16(1.0), x)  # noqa: E731
    near_the_top = jnp.array(
        [60.0, 62.0], jnp.float16
    )  # 65504 / 1024 is 63.97: the sum of both leaves float16
    result = jax.jit(jax.vmap(run, axis_name="d"))(near_the_top)
    assert (result.finite.tolist(), result.grad.tolist()) == (
        [True, True],
        [61.0, 61.0],
    )
    assert result.grad.dtype == jnp.float32


def test_float32_gradients_stay_float32_with_x64() -> None:
    run = lambda p: LossScale.create(RULE).value_and_grad(jnp.sum)(p)  # noqa: E731
    with enable_x64(True):
        result = jax.eval_shape(run, jnp.ones(2, jnp.float32))
    assert result.grad.dtype == jnp.float32


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_each_of_many_leaves_is_checked(place) -> None:
    params = {f"layer{i}": {"w": jnp.ones(2)} for i in range(100)} | {
        "none": {},
        "empty": None,
    }
    factor = {**params, f"layer{place}": {"w": jnp.array([1.0, math.inf])}}

    def loss(p):
        return sum(
            jnp.sum(a * b)
            for a, b in zip(*map(jax.tree.leaves, (p, factor)), strict=True)
        )

    result = LossScale.create(RULE).value_and_grad(loss)(params)
    assert not result.finite
    assert float(result.loss_scale.loss_scale) == 512.0
