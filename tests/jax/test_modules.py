"""Whole modules of equinox and flax.nnx: nothing is filtered by hand, the gradients are those of their own `grad`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampsim import Rule, init, update
from ampsim.jax import LossScale, all_finite, select_tree
from tests.jax.helpers import bits

RULE = Rule(2.0**14, growth_interval=2)
X = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2)


@pytest.mark.peer("equinox", "optax")
def test_a_whole_equinox_module_trains_and_skips_without_a_filter() -> None:
    import equinox as eqx
    import optax

    model = eqx.nn.Sequential([eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0)), eqx.nn.Dropout(0.0)])
    tx = optax.adam(0.1)
    loss = lambda model, x: jnp.mean(jax.vmap(model)(x) ** 2)  # noqa: E731

    @eqx.filter_jit
    def step(model, opt_state, loss_scale, x):
        loss_scale, finite, value, grads = loss_scale.value_and_grad(loss, grad=eqx.filter_value_and_grad)(model, x)
        updates, after = tx.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return *select_tree(finite, (eqx.apply_updates(model, updates), after), (model, opt_state)), loss_scale, value

    state, scaler, expected = tx.init(eqx.filter(model, eqx.is_inexact_array)), LossScale.create(RULE), init(RULE)
    unscaled = eqx.filter_jit(loss)
    for x, found in [(X, False), (X * jnp.inf, True), (X, False), (X, False)]:
        before, true = bits((model, state)), unscaled(model, x)
        model, state, scaler, value = step(model, state, scaler, x)
        expected = update(RULE, expected, found)
        assert scaler.state == expected
        assert (bits((model, state)) == before) == found
        if not found:
            np.testing.assert_allclose(value, true, rtol=1e-6)
    assert all_finite(model)
    assert model.layers[1].p == 0.0  # a number still, no traced array


@pytest.mark.peer("equinox")
def test_gradients_are_those_of_the_given_grad() -> None:
    import equinox as eqx

    model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    loss = lambda model, x: (jnp.mean(jax.vmap(model)(x) ** 2), x)  # noqa: E731
    ours = LossScale.create(RULE).value_and_grad(loss, has_aux=True, grad=eqx.filter_value_and_grad)
    result = eqx.filter_jit(ours)(model, X)
    (value, _), grads = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))(model, X)
    assert bits(result.grad) == bits(grads)  # a power of two is exact
    assert bits(result.aux) == bits((value, X))
    assert jax.tree.structure(result.grad) == jax.tree.structure(grads)
    with pytest.raises(ValueError, match="`argnums` should not be passed"):  # equinox's own: it is passed on
        LossScale.create(RULE).value_and_grad(loss, (0,), has_aux=True, grad=eqx.filter_value_and_grad)


@pytest.mark.peer("equinox")
@pytest.mark.parametrize("mapped", ["vmap", "shard_map"])
def test_over_an_axis_a_modules_numbers_stay_numbers(mapped) -> None:
    import equinox as eqx
    from jax.sharding import PartitionSpec

    model = eqx.nn.Sequential([eqx.nn.Linear(2, 2, key=jax.random.key(0)), eqx.nn.Dropout(0.0)])
    mean = lambda model, x: jnp.mean(jax.vmap(model)(x) ** 2)  # noqa: E731
    differentiate = LossScale.create(RULE).value_and_grad(mean, axis_name="d", grad=eqx.filter_value_and_grad)
    run = lambda x: differentiate(model, x).grad  # noqa: E731
    alone = eqx.filter_jit(eqx.filter_grad(mean))
    if mapped == "vmap":
        grads = jax.tree.map(lambda g: g[0], eqx.filter_jit(jax.vmap(run, axis_name="d"))(jnp.stack([X, 2 * X])))
    else:
        mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        shared = PartitionSpec()
        mapped_run = jax.shard_map(run, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=shared)
        grads = eqx.filter_jit(mapped_run)(jnp.concatenate([X, X]))
    each = [alone(model, x) for x in (X, 2 * X if mapped == "vmap" else X)]
    assert jax.tree.structure(grads) == jax.tree.structure(each[0])
    np.testing.assert_allclose(grads.layers[0].weight, sum(g.layers[0].weight for g in each) / 2, rtol=1e-6)


@pytest.mark.peer("flax")
def test_an_nnx_model_with_dropout_is_differentiated() -> None:
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs) -> None:
            self.linear, self.dropout = nnx.Linear(2, 2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.linear(x))

    loss = lambda model, x: jnp.mean(model(x) ** 2)  # noqa: E731
    result = LossScale.create(RULE).value_and_grad(loss, grad=nnx.value_and_grad)(Model(nnx.Rngs(0)), X)
    value, grads = nnx.value_and_grad(loss)(Model(nnx.Rngs(0)), X)
    assert bits(result.grad) == bits(grads)
    assert bits(result.aux) == bits(value)
    only_bias = functools.partial(nnx.value_and_grad, argnums=nnx.DiffState(0, nnx.PathContains("bias")))
    result = LossScale.create(RULE).value_and_grad(loss, grad=only_bias)(Model(nnx.Rngs(0)), X)
    assert len(jax.tree.leaves(result.grad)) == 1


@pytest.mark.peer("flax", "optax")
def test_what_the_page_says_of_nnxs_shared_variables() -> None:
    import optax
    from flax import nnx

    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    shared, copied = nnx.state(model), jax.tree.map(jnp.copy, nnx.state(model))
    optimizer.update(model, jax.tree.map(lambda p: p * jnp.nan, copied))
    assert not all_finite(select_tree(jnp.bool_(0), nnx.state(model), shared))
    nnx.update(model, select_tree(jnp.bool_(0), nnx.state(model), copied))
    assert all_finite(nnx.state(model))
