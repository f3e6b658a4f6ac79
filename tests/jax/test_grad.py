"""`value_and_grad` has flax's shape and the true loss; `skip_nonfinite` leaves the optimizer's state alone."""

import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import Rule, State, init, update
from ampsim.jax import LossScale, skip_nonfinite
from tests.examples import examples
from tests.jax.helpers import bits

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

    ours = LossScale.from_state(Rule(growth_interval=2001), State(scale)).value_and_grad(
        fun, has_aux=True
    )(P, X)
    theirs = DynamicScale(scale=jnp.float32(scale)).value_and_grad(fun, has_aux=True)(P, X)
    assert float(ours.loss_scale.loss_scale) == float(theirs.dynamic_scale.scale)
    assert bool(ours.finite) == bool(theirs.finite)
    assert ours.aux[1]["aux"] is X
    if ours.finite:
        np.testing.assert_allclose(ours.grad["w"], theirs.grad["w"], rtol=1e-6)
        np.testing.assert_allclose(ours.aux[0], theirs.aux[0], rtol=1e-6)


def test_loss_is_unscaled_despite_overflow() -> None:
    scaler = LossScale.from_state(Rule(), State(2.0**100))
    new, finite, value, _ = scaler.value_and_grad(lambda p: p * 2.0**100)(2.0)
    assert (float(value), bool(finite), float(new.loss_scale)) == (2.0**101, False, 2.0**99)


def test_overflow_during_unscale_is_found() -> None:
    scaler = LossScale.from_state(Rule(), State(2.0**-10))
    result = scaler.value_and_grad(lambda p: p * jnp.float32(3e38) * 4)(jnp.float32(0.0))
    assert not result.finite
    assert float(result.loss_scale.loss_scale) == 2.0**-11


def test_argnums_has_aux_and_keywords() -> None:
    def fun(a, b, *, c):
        return a * b * c, "static"[0] and c

    differentiate = LossScale.create(RULE).value_and_grad(fun, argnums=(0, 1), has_aux=True)
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
    assert (result.finite.tolist(), result.grad.tolist()) == ([True, True], [61.0, 61.0])
    assert result.grad.dtype == jnp.float32


@pytest.fixture(scope="module")
def adam():
    optax = pytest.importorskip("optax")
    tx = skip_nonfinite(optax.adam(0.1), RULE)
    return tx, jax.jit(tx.update), optax.adam(0.1)


@settings(max_examples=examples(ms=10))
@given(flags=st.lists(st.booleans(), min_size=1, max_size=8))
def test_skip_changes_nothing_step_matches_optimizer(adam, flags) -> None:
    tx, step, plain = adam
    state, inner = tx.init(P), plain.init(P)
    assert (bool(state.finite), int(state.notfinite_count), int(state.total_notfinite)) == (
        True,
        0,
        0,
    )
    expected = init(RULE)
    for t, found in enumerate(flags):
        true = {"w": jnp.array([0.25 * (t + 1), -1.0])}
        scaled = jax.tree.map(lambda g, s=state.loss_scale.loss_scale: g * s, true)
        scaled = {"w": scaled["w"].at[0].set(jnp.nan)} if found else scaled
        before = bits(state.inner)
        updates, state = step(scaled, state, P)
        if found:
            assert bits(state.inner) == before
            assert updates["w"].tolist() == [0.0, 0.0]
        else:
            wanted, inner = jax.jit(plain.update)(true, inner, P)
            assert bits(state.inner) == bits(inner)
            np.testing.assert_allclose(updates["w"], wanted["w"], rtol=1e-6)
        expected = update(RULE, expected, found)
        assert (state.loss_scale.state, bool(state.finite)) == (expected, not found)


def test_optimizer_receives_float32_and_extra_arguments() -> None:
    optax = pytest.importorskip("optax")
    seen = {}

    def record(grads, state, params=None, *, value):
        seen.update(grads=grads, value=value, params=params)
        return jax.tree.map(lambda g: -g, grads), state + 1

    tx = skip_nonfinite(
        optax.GradientTransformationExtraArgs(lambda p: jnp.array(0), record), Rule(2.0**20)
    )
    updates, state = tx.update({"w": jnp.full(2, 2.0**-10, jnp.float16)}, tx.init(P), P, value=7.0)
    assert updates["w"].tolist() == [-(2.0**-30)] * 2
    assert (updates["w"].dtype, seen["value"], int(state.inner)) == ("float32", 7.0, 1)
    assert seen["params"] is P


def test_wrapped_optimizer_in_donating_scan() -> None:
    optax = pytest.importorskip("optax")
    tx = skip_nonfinite(optax.sgd(0.5, momentum=0.9), Rule(2.0**15, growth_interval=3))

    def body(carry, x):
        p, state = carry
        scaled = jax.grad(lambda p: state.loss_scale.scale(loss(p, x)))(p)
        updates, state = tx.update(scaled, state, p)
        return (optax.apply_updates(p, updates), state), state.finite

    run = jax.jit(lambda carry, xs: jax.lax.scan(body, carry, xs), donate_argnums=0)
    start = jax.tree.map(jnp.copy, P)
    (p, state), finite = run((start, tx.init(P)), jnp.stack([X] * 8))
    expected = init(Rule(2.0**15, growth_interval=3))
    for ok in finite.tolist():
        expected = update(Rule(2.0**15, growth_interval=3), expected, not ok)
    assert state.loss_scale.state == expected
    assert not all(finite.tolist())
    assert any(finite.tolist())
    assert np.isfinite(p["w"]).all()


@pytest.mark.framework("optax")
@pytest.mark.parametrize("limit", [0, 2])
def test_counts_and_limit_match_optax(limit) -> None:
    import optax

    ours = skip_nonfinite(
        optax.adam(0.1), LossScale.create(enabled=False).rule, max_consecutive_errors=limit
    )
    theirs = optax.apply_if_finite(optax.adam(0.1), limit)
    step, framework = jax.jit(ours.update), jax.jit(theirs.update)
    state, wanted = ours.init(P), theirs.init(P)
    for x in [
        1.0,
        math.inf,
        2.0,
        math.nan,
        math.inf,
        3.0,
        math.inf,
        math.inf,
        -math.inf,
        math.nan,
        1.0,
    ]:
        grads = {"w": jnp.array([x, 1.0])}
        updates, state = step(grads, state, P)
        expected, wanted = framework(grads, wanted, P)
        assert bits(updates) == bits(expected)
        assert bits(state.inner) == bits(wanted.inner_state)
        counts = state.notfinite_count, state.finite, state.total_notfinite
        assert bits(counts) == bits(
            (wanted.notfinite_count, wanted.last_finite, wanted.total_notfinite)
        )


def test_skip_count_saturates_at_int32_max() -> None:
    optax = pytest.importorskip("optax")
    tx = skip_nonfinite(optax.sgd(1.0), RULE)
    state = tx.init(P)._replace(total_notfinite=jnp.int32(2**31 - 2))
    for total in (2**31 - 1, 2**31 - 1):
        updates, state = tx.update({"w": jnp.array([math.nan, 1.0])}, state, P)
        assert (updates["w"].tolist(), int(state.total_notfinite)) == ([0.0, 0.0], total)


def test_overflow_skips_on_mapped_axis() -> None:
    optax = pytest.importorskip("optax")
    tx = skip_nonfinite(optax.sgd(1.0), RULE, axis_name="d")
    grads = jnp.array([[1024.0, 2048.0], [1024.0, math.inf]])
    updates, state = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g)), axis_name="d"))(grads)
    assert updates.tolist() == [[0.0, 0.0]] * 2
    assert state.loss_scale.loss_scale.tolist() == [512.0, 512.0]


def test_float32_gradients_stay_float32_with_x64() -> None:
    run = lambda p: LossScale.create(RULE).value_and_grad(jnp.sum)(p)  # noqa: E731
    with jax.enable_x64(True):
        result = jax.eval_shape(run, jnp.ones(2, jnp.float32))
    assert result.grad.dtype == jnp.float32


TWO_DEVICES = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P
from ampsim import Rule
from ampsim.jax import LossScale, all_finite, dlpack

mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
w = jnp.ones(3)
loss = lambda w, x: jnp.mean(x @ w)

def step(scaler, w, x):
    result = scaler.value_and_grad(loss, axis_name="d")(w, x)
    own = all_finite(x)  # what a device would find alone
    swapped = scaler.value_and_grad(lambda x, w: loss(w, x), argnums=(0, -1), axis_name=("d",))
    return result.loss_scale, result.finite[None], own[None], result.grad, *swapped(x, w).grad

for check in (False, True):
    out = (P(), P("d"), P("d"), P(), P(), P())
    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=out, check_vma=check))
    for poison in (1.0, jnp.inf):
        x = jnp.arange(1.0, 13.0).reshape(4, 3).at[3, 0].mul(poison)  # rows 2 and 3 are the second device's
        scaler, finite, own, grad, of_x, last = run(LossScale.create(Rule(1024.0, growth_interval=1)), w, x)
        shards = [float(s.data) for s in scaler.loss_scale.addressable_shards]
        right = all(bool(jnp.array_equal(each, jax.grad(loss)(w, x))) for each in (grad, last))
        right &= of_x.tolist() == [[0.5] * 3] * 2  # the mean over the devices, of two rows each
        print(check, shards, finite.tolist(), own.tolist(), right)
scaler = jax.pmap(lambda s, w, x: s.value_and_grad(loss, axis_name="d")(w, x).loss_scale, axis_name="d",
                  in_axes=(None, None, 0))(LossScale.create(Rule(1024.0)), w, x.reshape(2, 2, 3))
print(scaler.loss_scale.tolist())
try:
    dlpack._to_torch(scaler.loss_scale, None)
except ValueError as error:
    print(error)
"""


def test_two_devices_share_one_found_inf() -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", "-c", TWO_DEVICES],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "False [2048.0, 2048.0] [True, True] [True, True] True",
        "False [512.0, 512.0] [False, False] [True, False] True",
        "True [2048.0, 2048.0] [True, True] [True, True] True",
        "True [512.0, 512.0] [False, False] [True, False] True",
        "[512.0, 512.0]",
        "an array on 2 devices: expected one; pass one shard of it",
    ]
