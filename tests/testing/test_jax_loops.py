"""JAX loops: a right one keeps every law, a planted bug is caught by the law that should."""

import dataclasses
import os

import pytest

pytest.importorskip("jax", reason="pip install -c constraints.txt 'ampsim[jax]'")

import jax
import jax.numpy as jnp

from ampsim.jax import LossScale, PolicyScale, select_tree
from ampsim.jax.dynamic_scale import DynamicScale
from ampsim.testing import Loop, LoopError, check_loop
from ampsim.testing.loop.backends.jax_faults import make_scale, updates
from ampsim.testing.loop.judge import LAWS, judge_loop
from tests.testing.jax_loops import (
    BUGS,
    LEAVES,
    RIGHT,
    VERDICTS,
    batches,
    cut,
    gradients,
    loss_of,
    selecting,
    start,
    stepped,
    unscale,
    unscaled,
    update,
)

QUICK = "averaging"


@pytest.fixture(autouse=True, scope="module")
def quickly_compiled():
    """Leave XLA's optimizations to the deep tests, as tests/jax does: a law is of what the loop calls with what."""
    jax.config.update("jax_disable_most_optimizations", os.environ.get("AMPSIM_DEEP") != "1")
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("name", [QUICK, *(pytest.param(n, marks=pytest.mark.deep) for n in RIGHT if n != QUICK)])
def test_right_loop_passes(name):
    check_loop(RIGHT[name], batches())


def test_every_check_has_its_bugs():
    assert {bug.law for bug in BUGS.values()} == {*LAWS} - {"ranks_are_invisible"}  # of torch


@pytest.mark.parametrize("name", BUGS)
def test_bug_fails_its_check(name):
    bug = BUGS[name]
    (result,) = judge_loop(bug.make, batches(), [bug.law])
    assert result.outcome == "failed", f"{bug.law} did not catch {bug.link}: {result}"
    assert result.text.startswith(f"{bug.law}: ")


SKIPS = "skipped_step_never_happened"


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_that_the_select_forgets_is_caught(leaf):
    (result,) = judge_loop(selecting(leaf), batches(), [SKIPS])
    assert (result.outcome, result.text.startswith(f"{SKIPS}: {leaf}")) == ("failed", True), result.text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_of_a_part_of_the_gradients_is_caught(verdict):
    (result,) = judge_loop(selecting(verdict=verdict), batches(), [SKIPS])
    assert result.outcome == ("passed" if verdict == "of all" else "failed"), result.text


@pytest.mark.parametrize("forgets", [False, True])
def test_a_state_may_be_any_pytree(forgets):
    made = selecting("opt.1.count" if forgets else "")  # once: it compiles

    def make(scaler: LossScale):
        loop = made(scaler)
        names = [*loop.state]

        def step(state, batch):
            after = loop.step(dict(zip(names, state, strict=True)), batch)
            return tuple(after[name] for name in names)

        return Loop(step, tuple(loop.state.values()))

    (result,) = judge_loop(make, batches(), [SKIPS])
    assert result.outcome == ("failed" if forgets else "passed"), result.text


@jax.jit
def step_by_the_last_verdict(state, batch):
    total = jax.tree.map(jnp.zeros_like, state["params"])
    for micro in zip(*cut(batch, 2), strict=True):  # both passes begin before either has ended
        scale, finite, _, grads = state["scale"].value_and_grad(loss_of)(state["params"], micro)
        total = jax.tree.map(lambda a, g: a + jnp.nan_to_num(g) / 2, total, grads)
    after = select_tree(finite, stepped(state, total), {key: state[key] for key in ("params", "opt")})
    return {**after, "scale": scale}


def test_the_verdict_of_the_last_of_two_passes_is_caught():
    def make(scaler: DynamicScale):
        return Loop(step_by_the_last_verdict, start(scaler))

    [result] = judge_loop(make, batches(), [SKIPS])
    assert result.outcome == "failed"
    assert "backward pass 1" in result.text


def flax_scale():
    return pytest.importorskip("flax.training.dynamic_scale").DynamicScale


@pytest.mark.parametrize("kind", [lambda: LossScale, flax_scale])
def test_what_an_update_makes_of_a_scale_is_known_of_each_class(kind):
    """An inf is found by flax's, too, which looks at gradients alone; the second clean step grows."""
    scaler = make_scale(kind(), 256.0, 2)
    clean, bad = updates(scaler)
    (grown, _), names = updates(clean), [each.name for each in dataclasses.fields(scaler)]
    name = "loss_scale" if "loss_scale" in names else "scale"
    assert [float(getattr(each, name)) for each in (clean, bad, grown)] == [256.0, 128.0, 512.0]


# --------------------------------------------------------------------------------------------------------- bad input


def looping(step, **more):
    def make(scaler: LossScale):
        return Loop(step, start(scaler, **more))

    return make


def right_step(state, batch):
    return update(state, unscaled(state, batch))


def unscaled_loop(scaler: LossScale):
    state = start(scaler)
    return Loop(lambda state, batch: state, {name: state[name] for name in ("params", "opt")})


def with_another_scale(scaler: PolicyScale):
    return Loop(right_step, start(scaler))


REFUSED = {
    "not in state": (unscaled_loop, "the scaler that make is given is not in state"),
    "returns nothing": (looping(lambda state, batch: None), "step returned NoneType: expected the state after it"),
    "unused": (looping(lambda state, batch: state), "the scaler was never used"),
    "another class": (with_another_scale, "make takes a PolicyScale: expected one of LossScale, DynamicScale, Dynami"),
    "no array": (looping(right_step, note="x"), "note is of type str"),
    "raises": (looping(lambda state, batch: state["x"]), "step, in batch 0 at scale 256, raised KeyError: 'x' (test_"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_bad_loop_is_refused(make, said):
    with pytest.raises(LoopError) as caught:
        check_loop(make, batches())
    assert said in str(caught.value)


def scale_outcome(step):
    (result,) = judge_loop(looping(step), batches(), ["scale_is_invisible"])
    return result.outcome, result.text


def in_half(state, batch):
    """Rounds to half precision what is scaled, so that small numbers are lost at one scale and not at another."""
    half = jax.tree.map(lambda g: (g * 1e-5).astype(jnp.float16), gradients(state, batch))
    return update(state, unscale(state["scale"], jax.tree.map(lambda g: g.astype(jnp.float32) * 1e5, half)))


def test_half_precision_is_not_accused():
    outcome, text = scale_outcome(in_half)
    assert outcome == "not applicable"
    assert "only up to factors of the scale, as convert_element_type gives float16: " in text
