"""`LossScale` is the machine: eager, jit and scan, for every rule without quirks, to the last bit."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import Rule, State, dialects, init, update
from ampsim.core.machine import Arithmetic, override
from ampsim.core.quirks import RaiseAtMin, StreakStartsAt
from ampsim.jax import LossScale, exact_product, machine
from tests.core.helpers import rules
from tests.examples import examples
from tests.jax.helpers import enable_x64, reference

STEPS = 24  # of the compiled scan: one shape for every history


histories = st.lists(st.booleans(), min_size=1, max_size=STEPS)


def eager(rule: Rule, history: list[bool], state: State) -> list[State]:
    scaler = LossScale.from_state(rule, state)
    return [(scaler := scaler.update(found)).state for found in history]


@jax.jit
def scan(constants, queue, trackers, history):
    """The machine with its constants as data, so that rules share what is compiled."""

    def body(carry, found):
        after = machine.step(exact_product.FLOAT32, constants, *carry, found)
        return after, after

    return jax.lax.scan(body, (queue, trackers), history)[1]


def scanned(rule: Rule, history: list[bool]) -> list[State]:
    start = LossScale.create(rule)
    padded = np.array(history + [False] * (STEPS - len(history)))
    out = scan(
        machine.constants(rule),
        start._queue(exact_product.FLOAT32),
        (np.int32(0), np.int32(0)),
        padded,
    )
    (scales, pending, waiting), (growth, overflow) = jax.tree.map(np.asarray, out)
    return [
        State(
            float(scales[t].view(np.float32)),
            int(growth[t]),
            int(overflow[t]),
            tuple(
                float(x) for x in pending[t].view(np.float32)[rule.delay - waiting[t] :]
            ),
        )
        for t in range(len(history))
    ]


@settings(max_examples=examples(ms=50))
@given(rules(), histories, st.integers(0, STEPS))
@example(Rule(1e-45, 1.5, 1.0, 1), [False] * 5, 0)
@example(Rule(2.0**127, growth_interval=1), [False] * 3, 0)
@example(
    Rule(2.0**127, growth_interval=1, arithmetic=Arithmetic(keeps_finite=False)),
    [False, False, True],
    0,
)
@example(Rule(2.0**-125, arithmetic=Arithmetic(flush_subnormals=True)), [True] * 3, 0)
@example(Rule(min_scale=-0.0), [True], 0)
@example(
    Rule(1000.0, hysteresis=2, delay=3, growth_interval=2),
    [True, True, False, False, True] * 4,
    2,
)
@example(
    Rule(
        growth_factor=3.0,
        backoff_factor=1 / 3,
        arithmetic=Arithmetic(backoff="reciprocal"),
    ),
    [True] * 9,
    0,
)
def test_eager_and_scan_match_state_machine(rule, history, cut) -> None:
    expected = reference(rule, history)
    assert scanned(rule, history) == expected
    start = [init(rule), *expected][: cut + 1][-1]  # any state, from which it goes on
    assert LossScale.from_state(rule, start).state == start
    assert eager(rule, history[cut:], start) == expected[cut:]


@pytest.mark.parametrize("growth_test", ["==", ">="])
def test_growth_tracker_past_interval(growth_test) -> None:
    rule = Rule(8.0, growth_interval=3, growth_test=growth_test)
    assert eager(rule, [False] * 5, State(8.0, 3)) == reference(
        rule, [False] * 5, State(8.0, 3)
    )


def expressible() -> list[str]:
    """One dialect of each kind that JAX can follow: each is compiled."""
    kinds: dict[object, str] = {}
    for name in dialects.names():
        rule = dialects.get(name)
        if not rule.quirks:
            kinds.setdefault((rule.arithmetic, rule.delay), name)
    return [*kinds.values()]


@jax.jit
def scan_scaler(scaler, history):
    return jax.lax.scan(
        lambda s, found: ((s := s.update(found)), s.newest), scaler, history
    )


@pytest.mark.parametrize("name", expressible())
def test_dialects_match_under_jit_and_scan(name) -> None:
    rule = dialects.get(name).replace(growth_interval=2)
    history = [False] * 5 + [True] * 3 + [False, True] * 3
    with enable_x64(rule.arithmetic.dtype == "float64"):
        expected = reference(rule, history)
        final, newest = scan_scaler(LossScale.create(rule), np.array(history))
    assert np.asarray(newest, float).tolist() == [state.newest for state in expected]
    assert final.state == expected[-1]


def test_synchronous_update_applies_newest_scale() -> None:
    rule = Rule(1024.0, delay=2)
    scaler, state = LossScale.create(rule), init(rule)
    for found, synchronous in [
        (True, False),
        (True, False),
        (True, True),
        (True, False),
        (False, False),
    ]:
        scaler = scaler.update(found, synchronous=synchronous)
        state = update(rule, state, found, synchronous=synchronous)
        assert scaler.state == state


@settings(max_examples=examples(ms=50))
@given(
    rules(),
    histories,
    st.one_of(st.floats(0.0, width=32), st.floats(0.0)),
    st.booleans(),
    st.data(),
)
@example(Rule(delay=2, growth_interval=2), [False, True], 3.0, False, None)
@example(Rule(min_scale=1.0, max_scale=2.0**17), [True], 0.1, True, None)
@example(Rule(), [True], math.nan, False, None)
@example(Rule(), [True], 1e39, False, None)
def test_override_matches_state_machine(
    rule, history, new_scale, synchronous, data
) -> None:
    cut = data.draw(st.integers(0, len(history))) if data else 1
    scaler, state = LossScale.create(rule), init(rule)
    for t, found in enumerate(history):
        if t == cut:
            scaler = scaler.override(new_scale, synchronous=synchronous)
            state = override(rule, state, new_scale, synchronous=synchronous)
            assert str(scaler.state) == str(state)  # NaN is no more than itself
        scaler, state = scaler.update(found), update(rule, state, found)
        assert str(scaler.state) == str(state)


@given(histories)
def test_disabled_scale_stays_one(history) -> None:
    scaler = LossScale.create(Rule(min_scale=8.0, delay=2), enabled=False)
    assert scaler.state == init(scaler.rule)
    final, newest = scan_scaler(
        scaler, np.array(history + [False] * (STEPS - len(history)))
    )
    assert set(np.asarray(newest).tolist()) == {1.0}
    assert final.state.scale == 1.0


def test_disabled_scale_still_checks_gradients() -> None:
    scaler = LossScale.create(enabled=False)
    grads = {"w": jnp.array([1.5, math.inf], jnp.bfloat16)}
    assert scaler.unscale(grads)["w"].tolist() == [1.5, math.inf]
    found = scaler.value_and_grad(lambda w, x: jnp.sum(w * x))(
        jnp.ones(2, jnp.bfloat16), grads["w"]
    )
    assert not found.finite


jitted_update = jax.jit(LossScale.update)


@pytest.mark.parametrize(
    "found", [math.nan, 1, -1.0, np.float32(1), np.bool_(1), math.inf]
)
def test_found_inf_is_read_by_truth(found) -> None:
    assert float(LossScale.create().update(found).loss_scale) == 32768.0
    assert (
        float(jitted_update(LossScale.create(), np.float32(found)).loss_scale)
        == 32768.0
    )


def test_state_under_jit_names_the_arrays() -> None:
    with pytest.raises(TypeError, match="use the arrays loss_scale and growth_tracker"):
        jax.jit(lambda scaler: scaler.state.scale)(LossScale.create())


def test_tree_map_keeps_all_fields() -> None:
    rule = Rule(1000.0, delay=2, hysteresis=3)
    scaler = LossScale.from_state(rule, State(1000.0, 5, 2, (250.0,)))
    again = jax.tree.map(lambda x: x, scaler)
    for field in dataclasses.fields(LossScale):
        assert np.array_equal(
            getattr(again, field.name), getattr(scaler, field.name)
        ), field.name
    assert (
        len(jax.tree.leaves(scaler)) == len(dataclasses.fields(LossScale)) - 1
    )  # all but the rule
    flat, tree = jax.tree.flatten(scaler)
    assert (
        jax.tree.unflatten(tree, flat).state
        == scaler.state
        == State(1000.0, 5, 2, (250.0,))
    )
    assert jax.tree.unflatten(tree, flat).rule is rule


def test_update_keeps_dtypes_and_shapes() -> None:
    scaler = LossScale.create(Rule(delay=2))
    after = jax.jit(LossScale.update)(scaler, True)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), scaler) == jax.tree.map(
        lambda x: (x.shape, x.dtype), after
    )
    assert (
        scaler.loss_scale.dtype,
        scaler.growth_tracker.dtype,
        scaler.pending.shape,
    ) == (
        "float32",
        "int32",
        (2,),
    )


def test_donated_buffers() -> None:
    donating = jax.jit(LossScale.update, donate_argnums=0)
    scaler = first = LossScale.create(Rule(growth_interval=2, delay=1))
    for found in (True, False, False, True):
        scaler = donating(scaler, found)
    assert scaler.state == reference(scaler.rule, [True, False, False, True])[-1]
    assert first.growth_tracker.is_deleted()


def test_vmap_over_scalers_and_flags() -> None:
    scaler = LossScale.create(Rule(growth_interval=1))
    after = jax.vmap(LossScale.update, in_axes=(None, 0))(
        scaler, jnp.array([True, False])
    )
    assert after.loss_scale.tolist() == [32768.0, 131072.0]
    again = jax.vmap(LossScale.update)(after, jnp.array([False, True]))
    assert again.loss_scale.tolist() == [65536.0, 65536.0]


SCALES = st.one_of(
    st.floats(2.0**-100, 2.0**100, width=32),
    st.integers(-100, 120).map(lambda k: 2.0**k),
)


def at(scale: float) -> LossScale:
    return LossScale.from_state(Rule(), State(scale))


@settings(max_examples=examples(ms=6))
@given(
    st.integers(-100, 127),
    st.lists(st.floats(-(2.0**66), 2.0**66, width=32), min_size=12, max_size=12),
)
def test_unscale_matches_torch_arithmetic(exponent, values) -> None:
    scale = 2.0**exponent
    grads = np.array(values, np.float32)
    grads[np.abs(grads) < 1e-8] = 0
    with np.errstate(all="ignore"):
        expected = grads * np.float32(1.0 / np.float64(scale))
        expected = np.where(
            np.abs(expected) < 2.0**-126, 0, expected
        )  # `subnormal_gradients`
    for run in (LossScale.unscale, _unscale):
        got = np.asarray(run(at(scale), grads))
        assert np.where(np.abs(got) < 2.0**-126, 0, got).tolist() == expected.tolist()


@settings(max_examples=examples(ms=6))
@given(SCALES, st.floats(2.0**-20, 2.0**20, width=32))
def test_other_scales_agree_with_torch(scale, value) -> None:
    product = np.float32(value) * np.float32(1.0 / np.float64(scale))
    for run in (LossScale.unscale, _unscale):
        assert abs(
            np.float32(run(at(scale), np.float32(value))) - product
        ) <= 2 * np.spacing(product)


_unscale = jax.jit(LossScale.unscale)


def test_dtypes_match_torch() -> None:
    tree = {
        "half": jnp.ones(2, jnp.float16),
        "bf": jnp.ones(2, jnp.bfloat16),
        "full": jnp.ones(()),
        "n": jnp.arange(2),
    }
    tree["complex"] = jnp.ones(2, jnp.complex64)
    scaler = at(1024.0)
    assert scaler.scale(tree)["complex"].tolist() == [1024.0] * 2
    assert scaler.unscale(tree)["complex"].tolist() == [2.0**-10] * 2
    for result in (scaler.scale(tree), scaler.unscale(tree)):
        assert {k: v.dtype for k, v in result.items()} == {
            k: v.dtype for k, v in tree.items()
        }
        assert result["n"] is tree["n"]
    wide = scaler.unscale(tree, widen=True)
    assert (wide["half"].dtype, wide["bf"].dtype, wide["full"].dtype) == (
        "float32",
    ) * 3
    assert (
        float(scaler.unscale(jnp.float16(2.0**-20), widen=True)) == 2.0**-30
    )  # float16 has no such number
    with enable_x64(True):
        assert (
            jax.eval_shape(scaler.unscale, jnp.ones(1, jnp.float64)).dtype
            == jnp.float64
        )
        assert (
            LossScale.create(Rule(1.1, arithmetic=Arithmetic(dtype="float64"))).scale(
                jnp.float64(1.0)
            )
            == 1.1
        )


def test_half_is_scaled_in_float32() -> None:
    x = np.float16(1.3)
    scale = np.float32(3.3)
    assert float(at(float(scale)).scale(jnp.asarray(x))) == float(
        np.float16(np.float32(x) * scale)
    )
    assert at(2.0**16).scale(jnp.float16(1.0)) == math.inf


def test_gradients_pass_through_scale_and_unscale() -> None:
    scaler = at(1024.0)
    assert jax.grad(lambda x: scaler.scale(x) ** 2)(1.5) == 2 * 1024.0**2 * 1.5
    assert jax.jit(jax.grad(lambda x: scaler.unscale(scaler.scale(x) * 3)))(1.5) == 3.0
    assert jax.jvp(scaler.scale, (1.0,), (1.0,))[1] == 1024.0


def test_float0_gradients_are_unchanged() -> None:
    grads = jax.grad(lambda x, n: x * n, argnums=(0, 1), allow_int=True)(2.0, 3)
    assert at(4.0).unscale(grads)[1].dtype == jax.dtypes.float0


on_cpu = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="GPUs keep subnormals: see test_gpu"
)


@on_cpu
def test_deviation_subnormal_scale() -> None:
    scaler = at(2.0**-126).update(True)
    assert scaler.state.scale == 2.0**-127  # computed exactly
    assert float(_scale(scaler, jnp.float32(2.0))) == 0.0  # and of no use
    assert not np.isfinite(_unscale(scaler, jnp.zeros(2))).any()


_scale = jax.jit(LossScale.scale)


@on_cpu
def test_deviation_subnormal_gradients() -> None:
    assert float(_unscale(at(2.0), jnp.float32(2.0**-126))) == 0.0


def test_loaded_nan_stays_inf_is_clamped() -> None:
    scaler = LossScale.from_state(
        Rule(max_scale=2.0**20, min_scale=1.0, growth_interval=1), State(math.nan)
    )
    assert math.isnan(scaler.update(True).loss_scale)
    assert math.isnan(scaler.update(False).loss_scale)
    inf = LossScale.from_state(scaler.rule, State(math.inf))
    assert [inf.update(flag).loss_scale for flag in (True, False)] == [
        math.inf,
        2.0**20,
    ]


def test_override_under_jit() -> None:
    scaler = LossScale.create(Rule(delay=1, growth_interval=1)).update(False)
    after = jax.jit(LossScale.override)(scaler, jnp.float16(8.0))
    assert after.state == scaler.override(8).state == State(131072.0, 0, 0, (8.0,))


FLOAT64, ROUNDED = Arithmetic(dtype="float64"), Arithmetic(round_factors=True)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (
            lambda: LossScale.create(Rule(quirks=(StreakStartsAt(), RaiseAtMin()))),
            "quirks=StreakStartsAt, RaiseAtMin",
        ),
        (
            lambda: LossScale.create(Rule(arithmetic=FLOAT64)),
            "dtype='float64' without jax_enable_x64",
        ),
        (
            lambda: LossScale.create(Rule(growth_interval=2**31)),
            "growth_interval=2147483648",
        ),
        (lambda: LossScale.create(Rule(hysteresis=2**31)), "hysteresis=2147483648"),
        (
            lambda: LossScale.create(Rule(growth_factor=1e39, arithmetic=ROUNDED)),
            "growth_factor=1e+39",
        ),
        (
            lambda: LossScale.create(Rule(backoff_factor=1e-46, arithmetic=ROUNDED)),
            "backoff_factor=1e-46",
        ),
        (lambda: LossScale.create().update(jnp.zeros(2)), "found_inf has shape (2,)"),
        (lambda: LossScale.create().override(-1), "new_scale=-1.0"),
        (lambda: LossScale.create().override(jnp.ones(2)), "new_scale has shape (2,)"),
    ],
)
def test_unsupported_rule_features_raise(make, shown) -> None:
    with pytest.raises(ValueError, match=re.escape(shown)):
        make()


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (State(1.0, memory=(("a", 1),)), "memory"),
        (State(1.0, pending=(1.0, 1.0)), "2 pending"),
        (State(-1.0), "scale=-1.0"),
        (State(1.0, pending=(0.1,)), "scale=0.1"),  # no float32 number
        (State(1.0, 0, 1), "overflow_tracker=1"),
        (State(1.0, 2**31), "growth_tracker=2147483648"),
        (State(1.0, -(2**32)), "growth_tracker=-4294967296"),
    ],
)
def test_invalid_state_raises(state, shown) -> None:
    with pytest.raises(ValueError, match=shown):
        LossScale.from_state(Rule(delay=1), state)


@pytest.mark.parametrize("rule", ["torch", 2.0**16])
def test_non_rule_raises(rule) -> None:
    with pytest.raises(TypeError, match="PolicyScale"):
        LossScale.create(rule)
