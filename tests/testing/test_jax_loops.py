"""JAX loops: a correct loop passes every check, and a seeded fault fails the expected check."""

import os

import pytest

pytest.importorskip("jax", reason="pip install -c constraints.txt 'ampsim[jax]'")

import jax

from ampsim.jax import LossScale, PolicyScale
from ampsim.testing import Loop, LoopError, check_loop
from ampsim.testing.loop.checks import CHECKS
from ampsim.testing.loop.judge import judge_loop
from tests.testing.jax_loops import (
    BUGS,
    LEAVES,
    RIGHT,
    batches,
    selecting,
    start,
    unscaled,
    update,
)

QUICK = "averaging"


@pytest.fixture(autouse=True, scope="module")
def quickly_compiled():
    """Leave XLA's optimizations to the deep tests, as tests/jax does: a check is of what the loop
    calls with what.
    """
    jax.config.update(
        "jax_disable_most_optimizations", os.environ.get("AMPSIM_DEEP") != "1"
    )
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize(
    "name",
    [QUICK, *(pytest.param(n, marks=pytest.mark.deep) for n in RIGHT if n != QUICK)],
)
def test_right_loop_passes(name):
    check_loop(RIGHT[name], batches())


def test_every_check_has_its_bugs():
    assert {bug.check for bug in BUGS.values()} == {*CHECKS}


@pytest.mark.parametrize("name", BUGS)
def test_bug_fails_its_check(name):
    bug = BUGS[name]
    (result,) = judge_loop(bug.make, batches(), [bug.check])
    assert result.outcome == "failed", f"{bug.check} did not catch {bug.link}: {result}"
    assert result.text.startswith(f"{bug.check}: ")


SKIPS = "skipped_step_changes_nothing"


@pytest.mark.parametrize("leaf", LEAVES)
def test_forgotten_leaf_fails(leaf):
    (result,) = judge_loop(selecting(leaf), batches(), [SKIPS])
    assert (result.outcome, result.text.startswith(f"{SKIPS}: {leaf}")) == (
        "failed",
        True,
    ), result.text


# ---------------------------------------------------------------------------------------------------------
# bad input


def looping(step, **more):
    def make(scaler: LossScale):
        return Loop(step, start(scaler, **more))

    return make


def right_step(state, batch):
    return update(state, unscaled(state, batch))


def unscaled_loop(scaler: LossScale):
    state = start(scaler)
    return Loop(
        lambda state, batch: state, {name: state[name] for name in ("params", "opt")}
    )


def with_another_scale(scaler: PolicyScale):
    return Loop(right_step, start(scaler))


REFUSED = {
    "not in state": (unscaled_loop, "the given scaler is not in state"),
    "returns nothing": (
        looping(lambda state, batch: None),
        "step returned NoneType: expected the new state",
    ),
    "unused": (looping(lambda state, batch: state), "the scaler was never used"),
    "another class": (
        with_another_scale,
        "make takes a PolicyScale: expected one of LossScale, DynamicScale, Dynami",
    ),
    "no array": (looping(right_step, note="x"), "note is of type str"),
    "raises": (
        looping(lambda state, batch: state["x"]),
        "step, in batch 0 at scale 256, raised KeyError: 'x' (test_",
    ),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_invalid_loop_raises(make, said):
    with pytest.raises(LoopError) as caught:
        check_loop(make, batches())
    assert said in str(caught.value)
