"""flax's checkpoints keep every field of our states, and refuse a state dict that has lost one."""

import functools
import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

from ampsim import Rule, State
from ampsim.core.machine import Arithmetic
from ampsim.core.policies import Deduplicated, LogMax
from ampsim.jax import LossScale, PolicyScale, dynamic_loss_scale
from ampsim.jax.dynamic_scale import DynamicScale
from tests.core.helpers import rules
from tests.examples import examples
from tests.jax.helpers import bits, reference

pytestmark = pytest.mark.framework("flax")
FULL = LossScale.from_state(
    Rule(1000.0, delay=2, hysteresis=3), State(1000.0, 5, 2, (250.0,))
)


@pytest.fixture(scope="module")
def flax():
    return importlib.import_module("flax.serialization")


@settings(max_examples=examples(ms=20))
@given(
    rules(), st.lists(st.booleans(), max_size=6), st.lists(st.booleans(), max_size=4)
)
def test_resume_is_exact(flax, rule, before, after) -> None:
    scaler = LossScale.create(rule)
    for found in before:
        scaler = scaler.update(found)
    restored = flax.from_bytes(LossScale.create(rule), flax.to_bytes(scaler))
    assert restored.state == scaler.state
    for found, expected in zip(
        after, reference(rule, after, scaler.state), strict=True
    ):
        restored = restored.update(found)
        assert restored.state == expected


def test_checkpoints_are_interchangeable_with_flax(flax) -> None:
    theirs = importlib.import_module("flax.training.dynamic_scale").DynamicScale
    for one, other in [(theirs, DynamicScale), (DynamicScale, theirs)]:
        for saved in (one(), one(fin_steps=jnp.int32(7), scale=jnp.float32(8.0))):
            restored = flax.from_bytes(other(), flax.to_bytes(saved))
            assert (int(restored.fin_steps), float(restored.scale)) == (
                int(saved.fin_steps),
                float(saved.scale),
            )


@functools.cache
def states() -> dict[str, tuple[object, object]]:
    """Name -> a state that has run, and a fresh one."""
    import optax

    tx, params = dynamic_loss_scale(optax.adam(0.1)), {"w": jnp.ones(2)}
    skipped = jax.jit(tx.update)(
        {"w": jnp.array([jnp.nan, 1.0])}, tx.init(params), params
    )[1]
    policy = PolicyScale.create(LogMax(delay=2))
    return {
        "LossScale": (FULL, LossScale.create(FULL.rule)),
        "PolicyScale": (policy.update(False, amax=3.0), policy),
        "DynamicLossScaleState": (skipped, tx.init(params)),
        "DynamicScale": (
            DynamicScale(fin_steps=jnp.int32(7), scale=jnp.float32(8.0)),
            DynamicScale(),
        ),
    }


@pytest.mark.framework("flax", "optax")
@pytest.mark.parametrize(
    "name", ["LossScale", "PolicyScale", "DynamicLossScaleState", "DynamicScale"]
)
def test_state_round_trip_is_exact(flax, name) -> None:
    value, fresh = states()[name]
    assert bits(fresh) != bits(value)
    restored = flax.from_bytes(fresh, flax.to_bytes(value))
    assert bits(restored) == bits(value)
    assert jax.tree.structure(restored) == jax.tree.structure(value)


@pytest.mark.parametrize(
    "field", ["loss_scale", "growth_tracker", "overflow_tracker", "pending", "waiting"]
)
def test_missing_field_is_named(flax, field) -> None:
    saved = flax.to_state_dict(FULL)
    del saved[field]
    with pytest.raises(ValueError, match=field):
        flax.from_state_dict(FULL, saved)


OTHERS = {
    "interval": (
        LossScale.create(Rule(growth_interval=3)),
        LossScale.create(Rule(growth_interval=7)),
    ),
    "arithmetic": (
        LossScale.create(Rule()),
        LossScale.create(Rule(arithmetic=Arithmetic(round_factors=True))),
    ),
    "policy": (PolicyScale.create(LogMax()), PolicyScale.create(LogMax(beta1=0.5))),
    "policy class": (PolicyScale.create(LogMax()), PolicyScale.create(Deduplicated())),
}


@pytest.mark.parametrize("name", OTHERS)
def test_flax_restore_into_other_rule_raises(flax, name) -> None:
    saved, other = OTHERS[name]
    with pytest.raises(ValueError, match="saved with"):
        flax.from_bytes(other, flax.to_bytes(saved))


def test_numpy_settings_equal_python_numbers(flax) -> None:
    saved = LossScale.create(Rule(np.float32(8.0), growth_interval=np.int64(3)))
    jax.tree_util.tree_leaves_with_path(saved)
    restored = flax.from_bytes(
        LossScale.create(Rule(8.0, growth_interval=3)), flax.to_bytes(saved)
    )
    assert restored.state == saved.state


@pytest.fixture(scope="module")
def orbax():
    return importlib.import_module("orbax.checkpoint")


@pytest.mark.framework("flax", "orbax", "optax")
@pytest.mark.parametrize(
    "name", ["LossScale", "PolicyScale", "DynamicLossScaleState", "DynamicScale"]
)
def test_orbax_round_trip_is_exact(orbax, tmp_path, name) -> None:
    value, fresh = states()[name]
    value = jax.tree.map(jnp.asarray, value)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", {"scale": value})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(
            tmp_path / "saved", {"scale": jax.tree.map(jnp.asarray, fresh)}
        )
    assert bits(restored["scale"]) == bits(value)
    assert jax.tree.structure(restored["scale"]) == jax.tree.structure(value)


@pytest.mark.framework("flax", "orbax")
@pytest.mark.parametrize("name", OTHERS)
def test_orbax_restore_into_other_rule_raises(orbax, tmp_path, name) -> None:
    saved, other = (jax.tree.map(jnp.asarray, each) for each in OTHERS[name])
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", {"scale": saved})
        checkpointer.wait_until_finished()
        with pytest.raises(ValueError, match="do not match"):
            checkpointer.restore(tmp_path / "saved", {"scale": other})


@pytest.mark.parametrize(
    "rule",
    [
        Rule(),
        Rule(1000.0, delay=2, hysteresis=3, hysteresis_reset={"clean", "growth"}),
        Rule(
            max_scale=math.inf,
            arithmetic=Arithmetic(backoff="divide", round_factors=True),
        ),
    ],
)
def test_exported_update_keeps_the_rule(rule) -> None:
    pytest.importorskip("flatbuffers", reason="jax.export needs it")
    scaler = LossScale.create(rule)
    exported = export.export(jax.jit(LossScale.update))(scaler, jnp.bool_(True))
    after = export.deserialize(exported.serialize()).call(scaler, jnp.bool_(True))
    assert (after.rule, after.state) == (rule, scaler.update(True).state)
