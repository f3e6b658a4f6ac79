"""`dynamic_loss_scale` follows the reference state machine, and a skipped step changes nothing."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import export

from ampsim import Rule
from ampsim.jax import MultiSteps, dynamic_loss_scale, scale_loss
from tests.examples import examples
from tests.jax.helpers import bits, reference

STEPS = 24
P = {"w": jnp.array([1.0, 2.0])}
X = jnp.array([3.0, 4.0], jnp.float16)
NAN = {"w": jnp.array([math.nan, 1.0])}
SGD = optax.sgd(1.0)
powers = st.integers(-126, 127)


def loss(p, x):
    return jnp.sum(p["w"].astype(jnp.float16) * x).astype(jnp.float32)


@st.composite
def arguments(draw):
    low, start, high = sorted(draw(st.tuples(powers, powers, powers)))
    return {
        "init_scale": 2.0**start,
        "growth_interval": draw(st.integers(1, 4)),
        "growth_factor": 2.0 ** draw(st.integers(0, 3)),
        "backoff_factor": 2.0 ** -draw(st.integers(0, 3)),
        "min_scale": 2.0**low,
        "max_scale": 2.0**high,
    }


@settings(max_examples=examples(ms=100))  # each is compiled
@given(arguments(), st.lists(st.booleans(), min_size=STEPS, max_size=STEPS))
@example({"init_scale": 2.0**-125}, [True] * STEPS)
@example(
    {"init_scale": 2.0**126, "growth_interval": 1, "growth_factor": 4.0},
    [False] * STEPS,
)
def test_scale_matches_reference_state_machine(given_arguments, flags) -> None:
    tx = dynamic_loss_scale(SGD, **given_arguments)
    bounds = {"min_scale": 2.0**-126, "max_scale": 2.0**127}
    rule = Rule(**{"init_scale": 2.0**15} | bounds | given_arguments)

    @jax.jit
    def run(state, xs):
        def body(state, x):
            state = tx.update(x, state)[1]
            return state, (state.loss_scale, state.count)

        return jax.lax.scan(body, state, xs)[1]

    scales, counts = run(
        tx.init(jnp.ones(())), np.where(flags, np.inf, 0.0).astype(np.float32)
    )
    expected = reference(rule, flags)
    assert np.asarray(scales).tolist() == [state.scale for state in expected]
    assert np.asarray(counts).tolist() == [state.growth_tracker for state in expected]


@pytest.fixture(scope="module")
def adam():
    tx, plain = dynamic_loss_scale(optax.adam(0.1), 1024.0, 2), optax.adam(0.1)
    return tx, jax.jit(tx.update), plain, jax.jit(plain.update)


@settings(max_examples=examples(ms=10))
@given(flags=st.lists(st.booleans(), min_size=1, max_size=8))
def test_skip_changes_nothing_step_matches_optimizer(adam, flags) -> None:
    tx, step, plain, plain_step = adam
    state, inner = tx.init(P), plain.init(P)
    for t, found in enumerate(flags):
        true = {"w": jnp.array([0.25 * (t + 1), -1.0])}
        scaled = (
            NAN if found else jax.tree.map(lambda g, s=state.loss_scale: g * s, true)
        )
        before = state
        updates, state = step(scaled, state, P)
        if found:
            assert bits(state.inner_state) == bits(before.inner_state)
            assert updates["w"].tolist() == [0.0, 0.0]
        else:
            wanted, inner = plain_step(true, inner, P)
            assert bits((updates, state.inner_state)) == bits((wanted, inner))
        was_skipped = state.count == 0 and state.loss_scale <= before.loss_scale
        assert bool(was_skipped) == found


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_parameters_are_optimized_in_float32(dtype) -> None:
    tx, params = (
        dynamic_loss_scale(optax.adamw(0.1), 2.0**20),
        {"w": jnp.ones(2, dtype)},
    )
    state = tx.init(params)
    updates, after = jax.jit(tx.update)(
        {"w": jnp.full(2, 2.0**-10, dtype)}, state, params
    )
    assert float(after.inner_state[0].mu["w"][0]) == pytest.approx(0.1 * 2.0**-30)
    assert updates["w"].dtype == jnp.float32
    assert optax.apply_updates(params, updates)["w"].dtype == dtype
    assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)


def test_extra_arguments_reach_the_optimizer() -> None:
    seen = {}

    def record(grads, state, params=None, *, value):
        seen.update(value=value)
        return grads, state

    inner = optax.GradientTransformationExtraArgs(lambda p: (), record)
    tx = dynamic_loss_scale(inner)
    tx.update(P, tx.init(P), P, value=7.0)
    assert seen == {"value": 7.0}


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_each_of_many_leaves_is_checked(place) -> None:
    grads = {f"layer{i}": [jnp.ones(2), {"b": jnp.ones(())}] for i in range(50)}
    tx = dynamic_loss_scale(SGD, 4.0)
    state = tx.init(grads)
    leaves, tree = jax.tree.flatten(grads)
    leaves[place] = leaves[place] * math.inf
    updates, after = tx.update(jax.tree.unflatten(tree, leaves), state)
    assert float(after.loss_scale) == 2.0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates))


def test_loop_in_donating_scan() -> None:
    tx, rule = (
        dynamic_loss_scale(optax.sgd(0.5, momentum=0.9), 2.0**15, 3),
        Rule(2.0**15, 2.0, 0.5, 3),
    )

    def body(carry, x):
        p, state = carry
        scaled = jax.grad(lambda p: scale_loss(state, loss(p, x)))(p)
        updates, after = tx.update(scaled, state, p)
        finite = jnp.isfinite(scaled["w"]).all()
        return (optax.apply_updates(p, updates), after), (finite, after.loss_scale)

    run = jax.jit(lambda carry, xs: jax.lax.scan(body, carry, xs), donate_argnums=0)
    start = jax.tree.map(jnp.copy, P)
    (p, _), (finite, scales) = run((start, tx.init(P)), jnp.stack([X] * 8))
    expected = reference(rule, [not ok for ok in finite.tolist()])
    assert scales.tolist() == [state.scale for state in expected]
    assert set(finite.tolist()) == {True, False}
    assert np.isfinite(p["w"]).all()


def test_vmap_gives_each_member_its_scale() -> None:
    tx = dynamic_loss_scale(SGD, 1024.0)
    grads = jnp.array([[1024.0, 2048.0], [1024.0, math.inf]])
    updates, state = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g))))(grads)
    assert updates.tolist() == [[-1.0, -2.0], [0.0, 0.0]]
    assert state.loss_scale.tolist() == [1024.0, 512.0]


def test_overflow_skips_on_mapped_axis() -> None:
    tx = dynamic_loss_scale(SGD, 1024.0, axis_name="d")
    grads = jnp.array([[1024.0, 2048.0], [1024.0, math.inf]])
    updates, state = jax.jit(
        jax.vmap(lambda g: tx.update(g, tx.init(g)), axis_name="d")
    )(grads)
    assert updates.tolist() == [[0.0, 0.0]] * 2
    assert state.loss_scale.tolist() == [512.0, 512.0]


WRAPPED = {
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(
        learning_rate=0.1
    ),
    "schedule_free": lambda: optax.contrib.schedule_free_adamw(0.1, warmup_steps=2),
    "muon": lambda: optax.contrib.muon(0.1),
    "multi_transform": lambda: optax.multi_transform(
        {"a": optax.adam(0.1), "f": optax.set_to_zero()}, "a"
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_optax_wrappers_skip_and_step(name) -> None:
    tx, params = dynamic_loss_scale(WRAPPED[name](), 4.0), {"w": jnp.ones((2, 2))}
    step, state = jax.jit(tx.update), tx.init(params)
    _, skipped = step({"w": jnp.full((2, 2), jnp.nan)}, state, params)
    assert bits(skipped.inner_state) == bits(state.inner_state)
    _, stepped = step({"w": jnp.full((2, 2), 2.0)}, skipped, params)
    assert bits(stepped.inner_state) != bits(skipped.inner_state)
    assert int(stepped.count) == 1


def micro_batches(tx, gradients):
    """Return the loss scale after each micro-batch, and the last parameter."""
    p, scales = jnp.zeros(()), []
    state, step = tx.init(p), jax.jit(tx.update)
    for g in gradients:
        scale = scale_loss(state, jnp.float32(1.0))
        updates, state = step(g * scale, state, p)
        p = optax.apply_updates(p, updates)
        scales.append(float(scale_loss(state, jnp.float32(1.0))))
    return scales, float(p)


@pytest.mark.parametrize("place", range(3, 6))
def test_overflow_skips_its_window_only(place) -> None:
    tx = MultiSteps(dynamic_loss_scale(SGD, 8.0, 2), 3)
    gradients = [1.0] * 12
    gradients[place] = math.inf
    scales, p = micro_batches(tx, gradients)
    assert scales == [8.0] * 5 + [4.0] * 6 + [8.0]  # constant in each window of 3
    assert p == -3.0


def test_window_mean_is_unscaled_once() -> None:
    scales, p = micro_batches(
        MultiSteps(dynamic_loss_scale(SGD, 8.0, 1), 2), [1.0, 3.0, 5.0, 7.0]
    )
    assert scales == [8.0, 16.0, 16.0, 32.0]
    assert p == -(2.0 + 6.0)


def test_reverse_order_drops_one_micro_batch() -> None:
    tx = dynamic_loss_scale(optax.MultiSteps(SGD, 2).gradient_transformation(), 8.0, 3)
    scales, p = micro_batches(tx, [1.0, math.inf, 3.0, 5.0, 7.0])
    assert scales == [8.0, 4.0, 4.0, 4.0, 8.0]
    assert p == -(2.0 + 6.0)


def test_scale_is_found_in_nested_states() -> None:
    tx = optax.chain(optax.identity(), MultiSteps(dynamic_loss_scale(SGD, 8.0), 2))
    assert float(jax.jit(scale_loss)(tx.init(P), jnp.float16(3.0))) == 24.0
    with pytest.raises(ValueError, match="no loss_scale"):
        scale_loss(SGD.init(P), jnp.float32(1.0))


def test_half_loss_is_scaled_in_float32() -> None:
    scaled = scale_loss(dynamic_loss_scale(SGD, 2.0**20).init(P), jnp.float16(1.0))
    assert (scaled.dtype, float(scaled)) == (jnp.float32, 2.0**20)


def test_exported_step_can_be_called() -> None:
    tx = dynamic_loss_scale(
        optax.GradientTransformation(lambda p: p, lambda g, s, p=None: (g, s))
    )
    arguments = (P, tx.init(P))
    pytest.importorskip("flatbuffers", reason="jax.export needs it")
    exported = export.export(jax.jit(tx.update))(*arguments)
    restored = export.deserialize(exported.serialize())
    assert bits(restored.call(*arguments)) == bits(tx.update(*arguments))


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ({"init_scale": 1000.0}, "init_scale=1000.0: expected a power of two"),
        ({"growth_factor": 1.5}, "growth_factor=1.5: expected a power of two"),
        ({"min_scale": 2.0**-127}, "expected a power of two in 2**-126"),
        ({"backoff_factor": 2.0}, "backoff_factor=2.0"),
        ({"growth_interval": 0}, "growth_interval=0"),
        ({"min_scale": 2.0**20, "max_scale": 2.0**10}, "min_scale"),
    ],
)
def test_invalid_arguments_raise(wrong, shown) -> None:
    with pytest.raises(ValueError, match=re.escape(shown)):
        dynamic_loss_scale(SGD, **wrong)
