"""Keras loops on both backends: what is right is not accused, what is wrong is caught. Each backend has its process."""

import json
import os
import subprocess
import sys

import pytest

INSTALL = "pip install -c constraints.txt 'ampsim[keras]'"
WRONG = """
import json, keras
from ampsim.testing import Loop
from ampsim.testing.loop.adapters import keras as right
from ampsim.testing.loop.judge import judge_loop

Scaler = keras.optimizers.LossScaleOptimizer

def changed(change):
    def make(scaled: type[Scaler]) -> Loop:
        loop = right.make(scaled)
        change(loop)
        return loop
    return make

def not_scaled(loop):  # as in a custom loop, https://github.com/keras-team/keras/issues/19244
    loop.state["model"].optimizer.scale_loss = lambda loss: loss

def not_checked(loop):
    loop.state["model"].optimizer.check_finite = lambda grads: keras.ops.convert_to_tensor(True)

def judged(make, *laws):
    outcomes = {result.check.name: result.outcome for result in judge_loop(make, right.batches, laws or None)}
    print(json.dumps(outcomes))

print(keras.backend.backend())
judged(right.make)
judged(changed(not_scaled), "scale_is_invisible")
judged(changed(not_checked), "skipped_step_never_happened")
"""
PASSED = ("scale_is_invisible", "skipped_step_never_happened", "resume_is_invisible", "it_learns")
UNASKED = ("splitting_is_invisible", "ranks_are_invisible")


@pytest.mark.deep  # Keras compiles each model anew
@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=pytest.mark.peer("keras", name, how=INSTALL)) for name in ("jax", "torch")]
)
def test_keras_is_judged_on_a_backend(backend):
    command = [sys.executable, "-W", "ignore", "-c", WRONG]
    run = subprocess.run(  # noqa: S603 - our own code
        command, env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True, check=True
    )
    name, *outcomes = run.stdout.strip().splitlines()
    right, not_scaled, not_checked = map(json.loads, outcomes)
    assert name == backend
    assert right == {**dict.fromkeys(PASSED, "passed"), **dict.fromkeys(UNASKED, "not applicable")}
    assert not_scaled == {"scale_is_invisible": "failed"}
    assert not_checked == {"skipped_step_never_happened": "failed"}
