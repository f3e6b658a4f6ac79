"""Keras loops on both backends: what is right is not accused, what is wrong is caught. Each backend has its process."""

import importlib
import json
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ampsim.testing.loop.faults import FAULTS
from ampsim.testing.loop.loop import Loop, LoopError
from ampsim.testing.loop.run import NOTHING, Fault

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


# ------------------------------------------------------------------------- the parts of a run, on a stand-in for Keras


class Variable:
    def __init__(self, name: str, value: Any, *, trainable: bool = True) -> None:
        self.name, self.value, self.trainable = name, np.array(value, np.float32), trainable

    def assign(self, value: Any) -> None:
        self.value = np.array(value, np.float32)


class Layer:
    def __init__(self, *variables: Variable) -> None:
        self.variables = list(variables)


class LossScaleOptimizer:
    def __init__(self, inner: Any, initial_scale: float = 1.0, dynamic_growth_steps: int = 9) -> None:
        self.inner, self.growth, self.built = inner, dynamic_growth_steps, True
        self.dynamic_scale, self.step_counter = Variable("dynamic_scale", initial_scale), Variable("step_counter", 0)
        self.variables = [self.dynamic_scale, self.step_counter, Variable("momentum", [1.0, 2.0])]

    def scale_loss(self, loss: Any) -> Any:
        return loss * float(self.dynamic_scale.value)


@pytest.fixture
def keras_run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the runs of Keras loops beside a package of that name with as much as they use, and return both."""
    pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
    package: Any = ModuleType("keras")
    package.optimizers, package.layers = (
        SimpleNamespace(LossScaleOptimizer=LossScaleOptimizer),
        SimpleNamespace(Layer=Layer),
    )
    package.ops = SimpleNamespace(
        convert_to_numpy=lambda value: value, is_tensor=lambda value: isinstance(value, np.ndarray)
    )
    package.backend = SimpleNamespace(backend=lambda: "torch")
    package.done = []  # in the order in which it was asked for
    package.utils = SimpleNamespace(
        clear_session=lambda *, free_memory: package.done.append(f"clear {free_memory}"),
        set_random_seed=lambda number: package.done.append(f"seed {number}"),
    )
    package.config = SimpleNamespace(dtype_policy=lambda: SimpleNamespace(compute_dtype=package.computes))
    monkeypatch.setitem(sys.modules, "keras", package)
    monkeypatch.delitem(sys.modules, RUNS, raising=False)
    yield importlib.import_module(RUNS).KerasRun, package
    del sys.modules[RUNS]


RUNS = "ampsim.testing.loop.backends.keras"


def test_a_run_of_keras_is_of_the_optimizer_that_the_loop_has_made(keras_run):
    kind, package = keras_run
    run, model = (
        kind(LossScaleOptimizer, 4.0, 7),
        Layer(Variable("w", [1.0, 2.0]), Variable("mean", 3.0, trainable=False)),
    )
    assert package.done == ["clear False"]
    for optimizer in [run.scaler("inner", initial_scale=9.0) for _ in range(2)]:  # the kit's scale, and not the user's
        assert (optimizer.inner, optimizer.growth) == ("inner", 7)
    given = {"model": model, "optimizer": optimizer, "epochs": 3}
    run.loop = Loop(lambda batch: package.done.append(batch), given)
    run.set_scale(8.0)
    assert (run.scale, run.scaler_state()) == (8.0, {"dynamic_scale": 8.0, "step_counter": 0.0})
    assert {name: array.tolist() for name, array in run.parameters().items()} == {"model.0.w": [1.0, 2.0]}
    assert {name: array.tolist() for name, array in run.unpack(model).items()} == {"0.w": [1.0, 2.0], "1.mean": 3.0}
    assert [*run.unpack(optimizer)] == ["2.momentum"]  # the scaler's own are looked at apart
    array = np.zeros(2)
    assert run.unpack(array) is not array
    assert (run.unpack(array).tolist(), run.unpack(3)) == ([0.0, 0.0], 3)
    run.seed(5)
    run._train("batch")
    assert package.done[1:] == ["seed 5", "batch"]
    held = run.held(given)
    for each in model.variables:
        each.assign(each.value + 1)
    assert [*held] == ["model", "optimizer"]
    run.hold(held)
    assert [each.value.tolist() for each in model.variables] == [[1.0, 2.0], 3.0]
    assert [run.loads(value) for value in given.values()] == [True, True, False]


def test_a_loss_of_keras_is_scaled_and_its_gradient_multiplied_by_what_is_planted(keras_run):
    import torch

    kind, _ = keras_run
    optimizer = kind(LossScaleOptimizer, 4.0, 7).scaler("inner")
    for fault, loss, gradient in (
        (Fault(2.0), 12.0, 8.0),
        (Fault(2.0, place="loss"), 24.0, 8.0),
        (Fault(1.0), 12.0, 4.0),
    ):
        FAULTS.plant(fault)
        weight = torch.tensor(3.0, requires_grad=True)
        scaled = optimizer.scale_loss(weight)
        scaled.backward()
        assert (scaled.item(), weight.grad.item()) == (loss, gradient)
    FAULTS.plant(NOTHING)


def test_what_keras_was_not_given_is_refused_and_half_precision_is_inexact(keras_run):
    kind, package = keras_run
    for wanted, name in ((None, "None"), (dict, "dict")):
        with pytest.raises(LoopError, match=f"^make takes a {name}: expected keras.optimizers.LossScaleOptimizer$"):
            kind(wanted, 1.0, 1)
    run = kind(LossScaleOptimizer, 1.0, 1)
    for built in (None, False):
        if built is not None:
            run.scaler("inner").built = built
        with pytest.raises(
            LoopError, match=r"^no optimizer was made with the class that make is given, or it is not built"
        ):
            _ = run.scale
    for package.computes, said in (
        ("float16", "keras.config.dtype_policy() computes in float16"),
        ("bfloat16", "keras.config.dtype_policy() computes in bfloat16"),
        ("float32", ""),
    ):
        assert kind.inexact(list, tiny=True) == said
