"""JAX loops: a right one keeps every law, a planted bug is caught by the law that should."""

import dataclasses
import os

import pytest

pytest.importorskip("jax", reason="pip install -c constraints.txt 'ampsim[jax]'")

import jax
import jax.numpy as jnp
import numpy as np

from ampsim.jax import LossScale, PolicyScale, select_tree
from ampsim.jax.dynamic_scale import DynamicScale
from ampsim.testing import Loop, LoopError, check_loop
from ampsim.testing.loop.backends.jax import JaxRun
from ampsim.testing.loop.backends.jax_faults import derivatives, losses, make_scale, updates
from ampsim.testing.loop.faults import ENDS, FAULTS
from ampsim.testing.loop.judge import LAWS, judge_loop
from ampsim.testing.loop.run import NOTHING, Fault
from tests.golden import without_law
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
def test_a_right_loop_is_not_accused(name):
    check_loop(RIGHT[name], batches())


def test_every_law_has_its_bugs():
    assert len(BUGS) >= 20
    assert {bug.law for bug in BUGS.values()} == {*LAWS} - {"ranks_are_invisible"}  # of torch


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_caught_by_its_law(name, golden):
    bug = BUGS[name]
    (result,) = judge_loop(bug.make, batches(), [bug.law])
    assert result.outcome == "failed", f"{bug.law} did not catch {bug.link}: {result}"
    assert result.text.startswith(f"{bug.law}: ")
    assert "\n  cause    " in result.text
    golden(without_law(result.text))


SKIPS = "skipped_step_never_happened"


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_that_the_select_forgets_is_caught(leaf, golden):
    (result,) = judge_loop(selecting(leaf), batches(), [SKIPS])
    assert (result.outcome, result.text.startswith(f"{SKIPS}: {leaf}")) == ("failed", True), result.text
    golden(without_law(result.text))


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_of_a_part_of_the_gradients_is_caught(verdict, golden):
    (result,) = judge_loop(selecting(verdict=verdict), batches(), [SKIPS])
    assert result.outcome == ("passed" if verdict == "of all" else "failed"), result.text
    golden(without_law(result.text))


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


@pytest.mark.parametrize("through", [losses, jax.jit(losses)])
def test_only_gradients_of_a_scaled_loss_are_spoiled(through):
    """Of a curvature, which nothing scales, no scaler is asked."""
    with derivatives():
        FAULTS.plant(Fault(name=ENDS[1]))
        try:
            scaled = jax.grad(lambda x: through(x * x).sum())(jnp.ones(2))
            FAULTS.factor()  # the pass of another scaled loss is on its way
            plain = jax.grad(lambda x: jax.grad(lambda x: (x**3).sum())(x).sum())(jnp.ones(2))
        finally:
            FAULTS.plant(NOTHING)
    assert scaled.tolist() == [2.0, float("inf")]
    assert plain.tolist() == [6.0, 6.0]


def test_a_poisoned_number_is_no_statistic_of_a_forward_pass():
    class Carrying(JaxRun):
        owners = parameters = lambda self: {"known": None}

    run = object.__new__(Carrying)
    run.states = [{"known": np.ones(2), "mean": np.ones(2), "loss": np.ones(()), "one": np.ones(1)}]
    assert run.buffers() == ["mean"]


def flax_scale():
    return pytest.importorskip("flax.training.dynamic_scale").DynamicScale


def jmp_scale():
    return pytest.importorskip("jmp").DynamicLossScale


@pytest.mark.parametrize("kind", [lambda: LossScale, lambda: DynamicScale, flax_scale, jmp_scale])
def test_what_an_update_makes_of_a_scale_is_known_of_each_class(kind):
    """An inf is found by flax's, too, which looks at gradients alone; the second clean step grows."""
    scaler = make_scale(kind(), 256.0, 2)
    clean, bad = updates(scaler)
    (grown, _), names = updates(clean), [each.name for each in dataclasses.fields(scaler)]
    name = "loss_scale" if "loss_scale" in names else "scale"
    assert [float(getattr(each, name)) for each in (clean, bad, grown)] == [256.0, 128.0, 512.0]


def test_a_batch_that_overflows_is_an_update_as_another():
    def step(state, batch):
        scale, finite, _, grads = state["scale"].value_and_grad(loss_of)(state["params"], batch)
        after = select_tree(finite, stepped(state, grads), {key: state[key] for key in ("params", "opt")})
        return {**after, "scale": scale}

    def make(scaler: DynamicScale):
        return Loop(step, start(scaler))

    data = batches()
    data[1] = (data[1][0], data[1][1] * np.float32(1e38))
    (result,) = judge_loop(make, data, ["scaler_changes_by_update_only"])
    assert result.outcome == "passed", result.text


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
def test_what_cannot_be_judged_is_refused(make, said, golden):
    with pytest.raises(LoopError) as caught:
        check_loop(make, batches())
    assert said in str(caught.value)
    golden(str(caught.value))


def test_a_dropped_scale_is_missed():
    make = looping(lambda state, batch: {**right_step(state, batch), "scale": 1.0})
    with pytest.raises(LoopError, match="the scaler that make is given is not in state"):
        check_loop(make, batches())


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


@pytest.mark.deep  # runs operation by operation
def test_a_step_that_cannot_be_traced_is_run():
    def step(state, batch):
        return in_half(state, batch), {"loss": float(state["params"]["v"][0])}

    assert scale_outcome(step)[0] == "not applicable"


@pytest.mark.deep  # so does this
def test_numbers_near_underflow_are_not_accused():
    def step(state, batch):
        grads = jax.tree.map(lambda g: g + g * 1e-37 * 1e-4 * 1e37, gradients(state, batch))
        return update(state, unscale(state["scale"], grads))

    outcome, text = scale_outcome(step)
    assert outcome == "not applicable"
    assert "gives numbers near the smallest normal ones of float32" in text


@pytest.mark.parametrize(("passes", "found", "used"), [([0, 1], [], True), ([0, 0], [], False), ([0], [False], True)])
def test_a_scaler_is_used_where_any_batch_has_a_pass_or_an_update(passes, found, used):
    run = object.__new__(JaxRun)
    run.passes, run.found = passes, found
    assert run.used is used


def test_an_optimizers_state_is_known_by_its_name_or_by_optaxs_types():
    optax, run = pytest.importorskip("optax"), object.__new__(JaxRun)
    state = {"params": {"w": jnp.ones(2)}, "mine": optax.adam(0.1).init({"w": jnp.ones(2)})}
    named = ["opt_state.m", "train.opt.m", "train.optimizer.m", "0.opt_state.m"]
    run.loop = Loop(lambda batch: None, state)
    run.states = [dict.fromkeys([*named, "params.w", "mine.0.mu.w", "mine.0.count", "optics.m", "adopt.m", "opt"])]
    assert run.owners().keys() == {*named, "mine.0.mu.w", "mine.0.count"}
    assert {*run.owners().values()} == {"the optimizer"}


def test_what_is_planted_counts_the_passes_that_were_seen_and_is_taken_out():
    run, fault = object.__new__(JaxRun), Fault(2.0, ENDS[0])
    for passes, arrived, seen in ((0, 0, {}), (2, 0, {"": 2}), (2, 3, {"": 2, **dict.fromkeys(ENDS, 3)})):
        with run.planting(fault) as planted:
            assert (FAULTS.fault, FAULTS.passes, FAULTS.arrived) == (fault, 0, 0)
            FAULTS.passes, FAULTS.arrived = passes, arrived
        assert (planted.passes, planted.outputs, FAULTS.fault) == (seen, 1, NOTHING)
