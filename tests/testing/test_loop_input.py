"""A loop that cannot be checked raises with one sentence, and a correct loop has no finding."""

import random
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from ampsim.testing import Loop, LoopError, check_loop, parametrize_with_checks
from ampsim.testing.check import BrokenError
from ampsim.testing.loop.judge import judge_loop
from experiments.bugs.loops import BUGS
from tests.test_cli import run
from tests.testing.handwritten_scalers import Stranger
from tests.testing.loops import Trainer, batches, looping, loss_of, sgd

SHARED = nn.Linear(3, 1)
CALLS = []


def good(t, batch):
    t.backward(batch)
    t.update()


def with_noise(t, batch):
    CALLS.append(batch)
    good(t, (batch[0] + len(CALLS), batch[1]))


def unscaling_twice(t, batch):
    t.backward(batch)
    t.scaler.unscale_(t.optimizer)
    t.scaler.unscale_(t.optimizer)


def raising(t, batch):
    raise KeyError("no such feature")


def outcomes(make, checks=None):
    return {
        result.check.name: (result.outcome, result.text)
        for result in judge_loop(make, batches(), checks)
    }


def shared(scaler):
    optimizer = torch.optim.SGD(SHARED.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        scaler.scale(loss_of(SHARED, batch)).backward()
        scaler.step(optimizer)
        scaler.update()

    return Loop(step, {"model": SHARED})


def ignoring(t, batch):
    t.optimizer.zero_grad()
    loss_of(t.model, batch).backward()
    t.optimizer.step()


class AlwaysOff(Stranger):
    def __init__(self, init_scale):
        super().__init__(init_scale, enabled=False)

    def get_scale(self):
        return 1.0


def annotated(annotation):
    def make(scaler):
        return looping(good)(scaler)

    make.__annotations__["scaler"] = annotation
    return make


REFUSED = {
    "takes no scaler": (annotated(dict), "make takes a dict without scale, unscale_"),
    "takes two classes": (annotated(Stranger | None), "expected the class of a scaler"),
    "takes an unknown class": (annotated("Mine"), "name 'Mine' is not defined"),
    "takes a fixed scale": (annotated(AlwaysOff), "get_scale() is 1, expected 256"),
    "differs from run to run": (
        looping(with_noise),
        "two runs of step differ after batch 0: model.0.weight",
    ),
    "shares a model": (
        shared,
        "two calls of make differ before the first batch: model.weight",
    ),
    "ignores the scaler": (looping(ignoring), "never used"),
    "carries nothing": (
        looping(good, setup=lambda t: t.state.clear()),
        "state is empty",
    ),
    "carries a string": (
        looping(good, setup=lambda t: t.carry("cfg", "adam")),
        "cfg is of type str",
    ),
    "logs a string": (
        looping(good, logged=lambda: {"note": "x"}),
        "logged.note is of type str",
    ),
    "raises": (
        looping(raising),
        "step, in batch 0 at scale 256, raised KeyError: 'no such feature' (test_loop_input.py:",
    ),
    "raises what torch says": (
        looping(unscaling_twice),
        "unscale_() has already been called",
    ),
    "raises while it is made": (
        lambda scaler: 1 / 0,
        "ZeroDivisionError: division by zero (test_loop_input",
    ),
    "names nothing": (lambda scaler: Loop(print, [SHARED]), "state has type list"),
    "makes no Loop": (lambda scaler: None, "make returned NoneType"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_invalid_loop_raises(make, said):
    CALLS.clear()  # as before any test
    for param in SHARED.parameters():
        nn.init.ones_(param)
    with pytest.raises(LoopError) as caught:
        check_loop(make, batches())
    assert said in str(caught.value)


def test_dropout_hides_no_wrong_verdict():
    def dropping(scaler):
        loop = BUGS["marin_7659_last_micro_batch_wins"].make(scaler)
        loop.state["model"].insert(0, nn.Dropout(0.3))
        return loop

    outcome, text = outcomes(dropping, ["micro_batches_equal_one_batch"])[
        "micro_batches_equal_one_batch"
    ]
    assert (outcome, "with an inf in micro-batch 0 of 2" in text) == ("failed", True), (
        text
    )


def test_few_batches_and_unknown_checks_raise():
    with pytest.raises(LoopError, match=r"len\(batches\)=2: expected at least 3"):
        check_loop(sgd, batches(2))
    with pytest.raises(
        ValueError,
        match="no check 'step_changes_parameter'; did you mean 'step_changes_parameters'",
    ):
        check_loop(sgd, batches(), ["step_changes_parameter"])
    with pytest.raises(ValueError, match="no check 'step_changes_parameter'"):
        check_loop(sgd, batches(), expected_failures={"step_changes_parameter": "x"})


# -------------------------------------------------------------------------- what is right otherwise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loop_passes(dtype):
    def step(t, batch):
        t.optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = loss_of(t.model, batch)
        t.scaler.scale(loss).backward()
        t.update()

    check_loop(looping(step), batches())


HALF = 1e-4


def with_a_half_branch(t, batch, factor=1.0):
    t.optimizer.zero_grad()
    loss = t.scaler.scale(loss_of(t.model, batch) * 1e-4)
    data, _ = batch
    half = (
        t.model[0].weight.half() * data[:4].half()[:, :3].mean()
    ).float().square().mean() * HALF
    (loss + t.scaler.scale(half)).backward()
    for param in t.params():
        param.grad /= factor if factor == 1.0 else t.scaler.get_scale()
    t.update()


halved = looping(with_a_half_branch)
doubled = looping(partial(with_a_half_branch, factor=2.0))


@pytest.mark.parametrize(("make", "outcome"), [(halved, "passed"), (doubled, "failed")])
def test_half_precision_hides_no_factor(make, outcome):
    name = "gradients_do_not_depend_on_loss_scale"
    assert outcomes(make, [name])[name][0] == outcome


def test_unloadable_state_skips_the_check():
    def make(scaler):
        trainer, steps = Trainer(scaler), 0

        def step(batch):
            nonlocal steps
            good(trainer, batch)
            steps += 1

        return Loop(step, {**trainer.state, "data": lambda: steps})

    assert outcomes(make)["resume_is_exact"] == (
        "skipped",
        "pass Loop(save=..., load=...): data can be read but not loaded",
    )


def test_unnamed_state_fails_resume():
    held = outcomes(
        looping(
            good, setup=lambda t: vars(t).update(state={"weight": t.model[0].weight})
        )
    )
    assert {name for name, (outcome, _) in held.items() if outcome == "failed"} == {
        "resume_is_exact"
    }
    assert (
        "the loop has other state, which is not in the checkpoint"
        in held["resume_is_exact"][1]
    )


# -----------------------------------------------------------------------------------------------
# expected, and reports


NERF = BUGS["nerfacc_307_never_unscaled"].make
BROKEN = {
    "gradients_do_not_depend_on_loss_scale": "https://github.com/nerfstudio-project/nerfacc/issues/307"
}


def test_an_expected_failure_is_strict():
    (result,) = check_loop(
        NERF,
        batches(),
        ["gradients_do_not_depend_on_loss_scale"],
        expected_failures=BROKEN,
    )
    assert result.outcome == "xfailed"
    decorator = parametrize_with_checks(
        [NERF], batches(), checks=[*BROKEN], expected_failures=BROKEN
    )
    assert [mark.name for mark in decorator.args[1][0].marks] == ["xfail"]
    with pytest.raises(
        AssertionError,
        match="gradients_do_not_depend_on_loss_scale passed, but was expected to fail",
    ):
        check_loop(
            sgd,
            batches(),
            ["gradients_do_not_depend_on_loss_scale"],
            expected_failures=BROKEN,
        )


@pytest.mark.parametrize(
    ("make", "ends"),
    [(sgd, pytest.skip.Exception), (looping(raising), LoopError), (NERF, BrokenError)],
)
def test_decorated_check_skips_raises_or_fails(make, ends):
    name = (
        "micro_batches_equal_one_batch"
        if make is sgd
        else "gradients_do_not_depend_on_loss_scale"
    )
    [case] = parametrize_with_checks([make], batches(), checks=[name]).args[1]
    assert case.id == f"{make.__name__}-{name}"
    with pytest.raises(ends):
        case.values[1](make)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module `my_loops` with right and wrong makers and their batches, in the folder of the test."""
    (tmp_path / "my_loops.py").write_text(
        "from tests.testing.loops import batches, sgd\n"
        "from tests.testing.test_loop_input import NERF, REFUSED\n"
        "raises = REFUSED['raises'][0]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_loops", None)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ["my_loops:sgd", "my_loops:NERF"],
            1,
            "gradients_do_not_depend_on_loss_scale: model.0.weight[",
        ),
        (["my_loops:sgd"], 0, "my_loops:sgd: 1 passed of 1 checks"),
        (
            [
                "my_loops:NERF",
                "--report",
                "md",
                "--xfail",
                "gradients_do_not_depend_on_loss_scale",
            ],
            0,
            "| `gradients_do_not_depend_on_loss_scale` |",
        ),
        (["my_loops:raises"], 2, "KeyError: 'no such feature'"),
        (["math:pow"], 2, "math has no 'batches'"),
    ],
)
def test_command_checks_loops(arguments, status, said):
    code, text = run(
        "check-loop",
        *arguments,
        "--check",
        "gradients_do_not_depend_on_loss_scale",
        "--time-limit",
        "0",
    )
    assert (code, said in text, "Traceback" in text) == (status, True, False), text


# ------------------------------------------------------------------------- what a run takes care of


def test_global_generators_are_seeded():
    def drawing(t, batch):
        by = random.random() + np.random.random() + torch.rand(())  # noqa: NPY002, S311
        t.backward((batch[0] * by, batch[1]))
        t.update()

    check_loop(looping(drawing), batches())


def test_debugger_trace_function_is_unchanged():
    def tracer(*_):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        assert (
            outcomes(NERF, ["gradients_do_not_depend_on_loss_scale"])[
                "gradients_do_not_depend_on_loss_scale"
            ][0]
            == "failed"
        )
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
