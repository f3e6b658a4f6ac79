"""flax's checkpoints keep every field of our states, and refuse a state dict that has lost one."""

import functools
import importlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import Rule, State
from ampsim.core.policies import Headroom, LogMax
from ampsim.jax import LossScale, PolicyScale, skip_nonfinite
from ampsim.jax.dynamic_scale import DynamicScale
from tests.examples import examples
from tests.jax.helpers import bits, reference, rules

pytestmark = pytest.mark.peer("flax")
FULL = LossScale.from_state(Rule(1000.0, delay=2, hysteresis=3), State(1000.0, 5, 2, (250.0,)))


@pytest.fixture(scope="module")
def flax():
    return importlib.import_module("flax.serialization")


@settings(max_examples=examples(ms=20))
@given(rules(), st.lists(st.booleans(), max_size=6), st.lists(st.booleans(), max_size=4))
def test_a_resumed_run_goes_on_as_if_nothing_had_been(flax, rule, before, after) -> None:
    scaler = LossScale.create(rule)
    for found in before:
        scaler = scaler.update(found)
    restored = flax.from_bytes(LossScale.create(rule), flax.to_bytes(scaler))
    assert restored.state == scaler.state
    for found, expected in zip(after, reference(rule, after, scaler.state), strict=True):
        restored = restored.update(found)
        assert restored.state == expected


@functools.cache
def states() -> dict[str, tuple[object, object]]:
    """Name -> a state that has run, and a fresh one."""
    import optax

    tx, params = skip_nonfinite(optax.adam(0.1), Rule(delay=1), max_consecutive_errors=3), {"w": jnp.ones(2)}
    skipped = jax.jit(tx.update)({"w": jnp.array([jnp.nan, 1.0])}, tx.init(params), params)[1]
    policy, headroom = PolicyScale.create(LogMax(delay=2)), PolicyScale.create(Headroom(interval=2))
    dynamic = jax.jit(lambda s: s.value_and_grad(lambda p: p * p)(1.0).dynamic_scale)(DynamicScale(growth_interval=0))
    seen = jax.jit(PolicyScale.update)
    return {
        "LossScale": (FULL, LossScale.create(FULL.rule)),
        "PolicyScale": (seen(seen(policy, False, amax=3.0), True, amax=jnp.inf), policy),
        "Headroom": (seen(headroom, False, amax=3.0), headroom),
        "SkipState": (skipped, tx.init(params)),
        "DynamicScale": (dynamic, DynamicScale(growth_interval=0)),
        "TrainState": ({"params": params, "scale": FULL}, {"params": params, "scale": LossScale.create(FULL.rule)}),
    }


@pytest.mark.peer("flax", "optax")
@pytest.mark.parametrize("name", ["LossScale", "PolicyScale", "Headroom", "SkipState", "DynamicScale", "TrainState"])
def test_every_state_comes_back_from_bytes_bit_by_bit(flax, name) -> None:
    value, fresh = states()[name]
    assert bits(fresh) != bits(value)
    for target in (fresh, jax.device_get(fresh)):
        restored = flax.from_bytes(target, flax.to_bytes(value))
        assert bits(restored) == bits(value)
        assert jax.tree.structure(restored) == jax.tree.structure(value)


def test_a_state_dict_has_the_fields_by_name_and_not_the_rule(flax) -> None:
    saved = flax.msgpack_restore(flax.to_bytes(FULL))
    assert {name: np.asarray(value).tolist() for name, value in saved.items()} == {
        "loss_scale": 1000.0,
        "growth_tracker": 5,
        "overflow_tracker": 2,
        "pending": [1000.0, 250.0],
        "waiting": 1,
    }
    assert [*flax.to_state_dict(LossScale.create())] == ["loss_scale", "growth_tracker"]
    assert {*map(type, jax.tree.leaves(flax.from_bytes(FULL, flax.to_bytes(FULL))))} == {type(jnp.ones(1))}


@pytest.mark.parametrize("field", ["loss_scale", "growth_tracker", "overflow_tracker", "pending", "waiting"])
def test_a_lost_field_is_an_error(flax, field) -> None:
    saved = flax.to_state_dict(FULL)
    del saved[field]
    with pytest.raises(
        ValueError, match=rf"^LossScale saved with .*: expected .*{field}.*; restore into one of the rule"
    ):
        flax.from_state_dict(FULL, saved)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("pending", np.ones(3, np.float32), r"^saved as float32\(3,\): expected float32\(2,\); restore into"),
        ("loss_scale", np.float64(1.0), r"^saved as float64\(\): expected float32\(\)"),
        ("growth_tracker", np.float32(1.0), r"^saved as float32\(\): expected int32\(\)"),
        ("more", np.float32(1.0), r"^LossScale saved with \[.*'more'.*\]: expected"),
    ],
)
def test_what_does_not_fit_is_an_error(flax, field, value, text) -> None:
    with pytest.raises(ValueError, match=text):
        flax.from_state_dict({"scale": FULL}, {"scale": {**flax.to_state_dict(FULL), field: value}})
    with pytest.raises(ValueError, match="pending"):  # a plain one into a delayed one
        flax.from_state_dict(FULL, flax.to_state_dict(LossScale.create()))
    message = (
        r"^PolicyScale saved with \[\]: expected \['state'\], at path \./scale; restore into one of the rule that "
    )
    with pytest.raises(ValueError, match=message):
        flax.from_state_dict({"scale": PolicyScale.create(LogMax())}, {"scale": {}})
    with pytest.raises(ValueError, match=r"at path \./scale/state$"):  # flax's own, of the fields of ours
        flax.from_state_dict({"scale": PolicyScale.create(LogMax())}, {"scale": {"state": {}}})


def test_flaxs_own_checkpoint_loads_and_ours_loads_there(flax) -> None:
    theirs = importlib.import_module("flax.training.dynamic_scale").DynamicScale
    for one, other in [(theirs, DynamicScale), (DynamicScale, theirs)]:
        for saved in (one(), one(fin_steps=jnp.int32(7), scale=jnp.float32(8.0))):
            restored = flax.from_bytes(other(), flax.to_bytes(saved))
            assert (int(restored.fin_steps), float(restored.scale)) == (int(saved.fin_steps), float(saved.scale))


ORDERS = [  # a process each
    "import flax; from ampsim.jax import LossScale",
    "from ampsim.jax import LossScale; assert 'flax' not in sys.modules; import flax.serialization",
    *(
        pytest.param(order, marks=pytest.mark.deep)
        for order in (
            "from ampsim.jax import LossScale; s = LossScale.create(); from flax.training import train_state",
            "import ampsim.jax, importlib; importlib.import_module('flax.serialization')",
        )
    ),
]


@pytest.mark.parametrize("imports", ORDERS)
def test_flax_learns_it_in_any_order_and_is_not_imported_for_it(imports) -> None:
    code = f"import sys; before = len(sys.meta_path); {imports}; from ampsim.jax import LossScale, PolicyScale\n"
    code += "from ampsim.core.policies import Probe; import flax; from flax import serialization\n"
    code += "states = LossScale.create(), PolicyScale.create(Probe())\n"
    code += "print(*([*serialization.to_state_dict(each)] for each in states))\n"
    code += "assert len(sys.meta_path) == before"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.stdout == "['loss_scale', 'growth_tracker'] ['state']\n", done.stderr
