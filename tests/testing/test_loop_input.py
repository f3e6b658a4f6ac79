"""What cannot be judged is refused in a sentence, and nothing that is right is accused."""

import sys
import traceback
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
import typer
from torch import nn

from ampsim.cli.check import _report
from ampsim.testing import Loop, LoopError, check_loop, parametrize_with_checks, parametrize_with_laws
from ampsim.testing.law import BrokenError, Result
from ampsim.testing.loop import rows as of_batches
from ampsim.testing.loop.judge import LAWS, judge_loop
from ampsim.testing.loop.laws.excused import Excuses, is_copy
from ampsim.testing.loop.laws.scaler import _again
from ampsim.testing.loop.laws.skipped import Skip
from ampsim.testing.loop.loop import blame_user_code
from ampsim.testing.loop.run import Planted
from ampsim.testing.loop.runs import Batch, iterations
from ampsim.testing.loop.state import Difference
from ampsim.testing.report import Report
from experiments.bugs.loops import BUGS
from tests.test_cli import run
from tests.testing.loops import RIGHT, Trainer, batches, looping, loss_of, sgd
from tests.testing.test_loops import scales_by_its_own

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


def outcomes(make, laws=None):
    return {result.check.name: (result.outcome, result.text) for result in judge_loop(make, batches(), laws)}


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


REFUSED = {
    "differs from run to run": (looping(with_noise), "step is not the same twice, after batch 0: model.0.weight"),
    "shares a model": (shared, "make is not the same twice, before the first batch: model.weight"),
    "ignores the scaler": (looping(ignoring), "the scaler was never used"),
    "carries nothing": (looping(good, setup=lambda t: t.state.clear()), "state is empty"),
    "carries what is no array": (
        looping(good, setup=lambda t: t.carry("cfg", "adam")),
        "cfg is of type str: expected what has",
    ),
    "logs what is no array": (looping(good, logged=lambda: {"note": "x"}), "logged.note is of type str"),
    "raises": (
        looping(raising),
        "step, in batch 0 at scale 256, raised KeyError: 'no such feature' (test_loop_input.py:",
    ),
    "raises what torch says": (looping(unscaling_twice), ")\n  cause    scaler.unscale_(optimizer) ran twice"),
    "raises while it is made": (
        lambda scaler: 1 / 0,
        "make raised ZeroDivisionError: division by zero (test_loop_input",
    ),
    "names nothing": (lambda scaler: Loop(print, [SHARED]), "state is a list: expected a mapping of names"),
    "makes no Loop": (lambda scaler: None, "make returned NoneType, expected a Loop"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_judged_is_refused(make, said, golden):
    CALLS.clear()  # as before any test
    for param in SHARED.parameters():
        nn.init.ones_(param)
    with pytest.raises(LoopError) as caught:
        check_loop(make, batches())
    assert said in str(caught.value)
    golden(str(caught.value))


def test_the_users_traceback_is_kept():
    with pytest.raises(LoopError) as caught:
        check_loop(looping(raising), batches())
    assert [call.name for call in traceback.extract_tb(caught.value.__cause__.__traceback__)][-1] == "raising"


@pytest.mark.parametrize("name", ["dropped", "normed"])
def test_a_split_that_rightly_trains_otherwise_is_asked_for_its_verdict(name, golden):
    outcome, text = outcomes(RIGHT[name], ["splitting_is_invisible"])["splitting_is_invisible"]
    assert outcome == "not applicable"
    assert text.startswith("only of verdict and scale, as ")
    golden(text.partition(":")[0])  # which number is furthest apart is a processor's matter


def test_dropout_hides_no_wrong_verdict(golden):
    def dropping(scaler):
        loop = BUGS["marin_7659_last_micro_batch_wins"].make(scaler)
        loop.state["model"].insert(0, nn.Dropout(0.3))
        loop.state["model"][2] = nn.Dropout(0.5)
        return loop

    outcome, text = outcomes(dropping, ["splitting_is_invisible"])["splitting_is_invisible"]
    assert outcome == "failed"
    assert "with an inf in micro-batch 0 of 2" in text
    golden(text)


def test_an_exception_in_a_planted_run_names_the_law():
    def step(t, batch):
        t.backward(batch)
        t.scaler.unscale_(t.optimizer)
        nn.utils.clip_grad_norm_(t.params(), 1.0, error_if_nonfinite=True)
        t.update()

    with pytest.raises(
        LoopError, match="skipped_step_never_happened: step, in batch 2 at scale 256, raised RuntimeError"
    ):
        check_loop(looping(step), batches())


def nothing_trained(scaler, group=None):
    """Names what counts its batches alone."""
    t, seen = Trainer(scaler), torch.zeros(())

    def step(batch):
        good(t, batch)
        seen.add_(1)

    return Loop(step, {"data": seen})


@pytest.mark.parametrize("make", [scales_by_its_own, nothing_trained])
def test_each_law_says_why_it_is_not_asked(make, golden):
    make = make if make is nothing_trained else looping(make)
    golden("\n".join(f"{name}: {outcome}, {text}" for name, (outcome, text) in outcomes(make).items()))


def test_few_batches_and_unknown_laws_are_refused():
    with pytest.raises(LoopError, match="2 batches: expected at least 3"):
        check_loop(sgd, batches(2))
    with pytest.raises(ValueError, match="no law 'it_learn'; did you mean 'it_learns'"):
        check_loop(sgd, batches(), ["it_learn"])
    with pytest.raises(ValueError, match="no law 'it_learn'"):
        check_loop(sgd, batches(), expected_failures={"it_learn": "x"})


# ------------------------------------------------------------------------------------------- what is right otherwise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_not_accused(dtype):
    def step(t, batch):
        t.optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = loss_of(t.model, batch)
        t.scaler.scale(loss).backward()
        t.update()

    check_loop(looping(step), batches())


HALF = 1e-6


def with_a_half_branch(t, batch, factor=1.0):
    t.optimizer.zero_grad()
    loss = t.scaler.scale(loss_of(t.model, batch) * 1e-4)
    data, _ = batch
    half = (t.model[0].weight.half() * data[:4].half()[:, :3].mean()).float().square().mean() * HALF
    (loss + t.scaler.scale(half)).backward()
    for param in t.params():
        param.grad /= factor if factor == 1.0 else t.scaler.get_scale()
    t.update()


halved = looping(with_a_half_branch)


def test_half_precision_that_differs_is_said_and_factors_are_still_held(golden):
    outcome, text = outcomes(halved, ["scale_is_invisible"])["scale_is_invisible"]
    assert (outcome, "only up to factors of the scale, as " in text, "float16" in text) == (
        "not applicable",
        True,
        True,
    )
    golden(text)
    wrong = looping(partial(with_a_half_branch, factor=2.0))
    assert outcomes(wrong, ["scale_is_invisible"])["scale_is_invisible"][0] == "failed"


def test_numbers_below_the_normal_ones_are_not_accused(golden):
    def step(t, batch):
        t.optimizer.zero_grad()
        tiny = t.model[0].weight.square().sum() * 3e-39
        t.scaler.scale(tiny * 1e-3).backward()
        for param in t.params()[:1]:
            param.grad *= 1e30
            param.grad *= 1e8
        t.scaler.step(t.optimizer)
        t.scaler.update()

    outcome, text = outcomes(looping(step), ["scale_is_invisible"])["scale_is_invisible"]
    assert outcome == "not applicable", text
    assert "numbers below the normal ones of float32" in text
    golden(text)


def test_what_overflows_at_one_scale_alone_is_not_accused():
    def step(t, batch):
        t.optimizer.zero_grad()
        t.scaler.scale(loss_of(t.model, batch) * 1e35).backward()
        for param in t.params():
            param.grad *= 1e-35
        t.update()

    outcome, text = outcomes(looping(step), ["scale_is_invisible"])["scale_is_invisible"]
    assert (outcome, text) == ("not applicable", "batch 0 overflows at scale 65536")


def test_a_number_that_cannot_be_loaded_is_not_accused():
    def make(scaler):
        trainer, steps = Trainer(scaler), 0

        def step(batch):
            nonlocal steps
            good(trainer, batch)
            steps += 1

        return Loop(step, {**trainer.state, "data": lambda: steps})

    assert outcomes(make)["resume_is_invisible"] == (
        "not applicable",
        "data can be read but not loaded: give Loop save= and load=",
    )


def test_what_state_does_not_name_is_not_saved():
    held = outcomes(looping(good, setup=lambda t: vars(t).update(state={"weight": t.model[0].weight})))
    assert {name for name, (outcome, _) in held.items() if outcome == "failed"} == {"resume_is_invisible"}
    assert "it carries something more, which a checkpoint of state loses" in held["resume_is_invisible"][1]


def test_statistics_of_the_forward_pass_are_not_promised_under_any_name():
    def make(scaler):
        loop = RIGHT["normed_and_dropped"](scaler)
        return Loop(loop.step, {**loop.state, "mean": loop.state["model"][1].running_mean})

    check_loop(make, batches(), ["skipped_step_never_happened"])


# ----------------------------------------------------------------------------------------------- expected, and reports


NERF = BUGS["nerfacc_307_never_unscaled"].make
BROKEN = {"scale_is_invisible": "https://github.com/nerfstudio-project/nerfacc/issues/307"}


def test_an_expected_failure_is_strict():
    (result,) = check_loop(NERF, batches(), ["scale_is_invisible"], expected_failures=BROKEN)
    assert result.outcome == "expected failure"
    with pytest.raises(AssertionError, match="scale_is_invisible holds, but was expected to be broken"):
        check_loop(sgd, batches(), ["scale_is_invisible"], expected_failures=BROKEN)


@parametrize_with_laws([sgd], batches(), ["scale_is_invisible", "it_learns"])
def test_a_loop_by_decorator(make, law):
    law(make)


@parametrize_with_laws([NERF], batches(), ["scale_is_invisible"], expected_failures=BROKEN)
def test_an_expected_failure_by_decorator(make, law):
    law(make)


def test_a_decorator_keeps_the_batches_for_each_law_and_refuses_an_unknown_one(monkeypatch):
    seen = []
    monkeypatch.setattr("ampsim.testing.parametrize.loops.judge_loop", lambda make, *given: seen.append(given) or [])
    for case in parametrize_with_laws([sgd], iter("abc"), ["it_learns", "scale_is_invisible"]).args[1]:
        case.values[1](sgd)
    assert seen == [([*"abc"], ["scale_is_invisible"]), ([*"abc"], ["it_learns"])]
    with pytest.raises(ValueError, match="no law 'it_learn'; did you mean 'it_learns'"):
        parametrize_with_laws([sgd], [], ["it_learns"], expected_failures={"it_learn": "x"})
    with pytest.raises(ValueError, match="no law 'skip_budgets'; did you mean 'skip_budget'"):
        parametrize_with_checks([torch.amp.GradScaler], expected_failures={"skip_budgets": "x"})


@pytest.mark.parametrize(
    ("make", "ends"), [(sgd, pytest.skip.Exception), (looping(raising), LoopError), (NERF, BrokenError)]
)
def test_a_law_by_decorator_is_skipped_refused_or_broken(make, ends, golden):
    name = "splitting_is_invisible" if make is sgd else "scale_is_invisible"
    [case] = parametrize_with_laws([make], batches(), [name]).args[1]
    assert case.id == f"{make.__name__}-{name}"
    with pytest.raises(ends) as ended:
        case.values[1](make)
    golden(str(ended.value))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module `my_loops` with right and wrong makers and their batches, in the folder of the test."""
    (tmp_path / "my_loops.py").write_text(
        "from tests.testing.loops import batches, sgd\n"
        "from tests.testing.test_loop_input import NERF, REFUSED, halved\n"
        "globals().update({name.replace(' ', '_'): make for name, (make, _) in REFUSED.items()})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_loops", None)


@pytest.mark.usefixtures("module")
def test_the_command_judges_loops_side_by_side(golden):
    code, text = run(
        "check-loop", "my_loops:sgd", "my_loops:NERF", "--check", "it_learns", "--check", "scale_is_invisible"
    )
    assert code == 1
    assert "scale_is_invisible: model.0.weight[" in text
    assert "my_loops:sgd: 2 passed of 2 checks" in text
    golden(text)
    assert run("check-loop", "my_loops:sgd")[0] == 0
    code, text = run("check-loop", "my_loops:NERF", "--report", "md", "--xfail", "scale_is_invisible")
    assert "| loop | `scale_is_invisible` | ✗ expected |" in text


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("target", "said"),
    [
        (["my_loops:raises"], REFUSED["raises"][1]),
        (["math:pow"], "math has no 'batches'"),
        (["my_loops:sgd", "--check", "it_learn"], "no law 'it_learn'"),
    ],
)
def test_the_command_refuses_what_cannot_be_judged(target, said, golden):
    code, text = run("check-loop", *target)
    assert (code, said in text, "Traceback" in text) == (2, True, False), text
    golden(text)


@pytest.mark.parametrize(
    ("ended", "status", "said"),
    [
        (["refused", "failed"], 1, "it_learns: no parameter moved\n"),
        (["refused", "passed"], 2, "ampsim: loop 0: make raised\n"),
    ],
)
def test_a_loop_that_cannot_be_judged_hides_no_finding_of_another(ended, status, said, capsys):
    texts = {"refused": "make raised", "failed": "it_learns: no parameter moved"}
    results = [Result(LAWS["it_learns"], f"loop {n}", each, texts.get(each, "")) for n, each in enumerate(ended)]
    with pytest.raises(typer.Exit) as left:
        _report(lambda expected: Report(results), None, None, None, None)
    assert left.value.exit_code == status
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("array", "copies"),
    [(np.array([256.0, 1 / 256]), True), (np.array(256), True), (np.array([256.0, 2.0]), False), (np.zeros(1), False)],
)
def test_a_copy_of_the_scale_may_be_its_inverse(array, copies):
    assert is_copy(array, {256.0, 0.0}) is copies


@pytest.mark.parametrize(
    ("name", "excused"), [("seen", True), ("streak", True), ("globalStep", False), ("num_Updates", False)]
)
def test_a_count_that_goes_on_in_a_skip_is_excused_unless_its_name_promises_steps(name, excused):
    before, after = np.array(3), np.array(4)
    excuses = object.__new__(Excuses)
    excuses.trained, excuses.owners, excuses.clean = set(), {}, {f"state.{name}": after}
    assert excuses._counts(Difference(f"state.{name}", before, after)) is excused
    assert excuses._counts(Difference(f"state.{name}", before, np.array(0))) is excused  # it begins anew
    assert not excuses._counts(Difference(f"state.{name}", before, np.array(7)))


def planted(**passes):
    skip = object.__new__(Skip)
    skip.clean, skip.owners = Planted(passes), {}
    return [str(fault) for fault in skip.faults()]


def test_faults_are_planted_in_the_first_and_the_last_pass_and_parameter():
    assert planted(first=1, last=3) == [
        "a NaN in one element of last's gradient",
        "a -inf in one element of first's gradient",
        "an inf in one element of last's gradient, backward pass 0",
        "a NaN in one element of last's gradient, backward pass 2",
        "an inf in the scaled loss",
        "an inf in all gradients",
    ]
    assert planted(only=1) == ["a NaN in one element of only's gradient", *planted(first=1, last=3)[-2:]]
    assert planted() == ["a NaN in the scaled loss", "a -inf in the scaled loss", "an inf in the scaled loss"]


def test_a_loop_is_cut_anew_for_other_batches():
    for data in (batches(), batches()):
        given = [Batch(place, each) for place, each in enumerate(data)]
        assert [batch for group in iterations(sgd, given) for batch in group] == given
        assert iterations(sgd, [*given]) is iterations(sgd, given)
        assert len(iterations(sgd, given[:2])) == 2


class Pair(NamedTuple):
    x: np.ndarray
    y: list[np.ndarray]


def test_a_batch_in_parts_is_of_its_own_kind():
    rows = np.arange(4.0)
    first, second = of_batches.halved({"pair": Pair(rows, [rows])}, 2)
    assert isinstance(first["pair"], Pair)
    assert (second["pair"].x.tolist(), second["pair"].y[0].tolist()) == ([2.0, 3.0], [2.0, 3.0])
    assert of_batches.larger(Pair(rows, [rows])).x.tolist() == (rows * (1 + 2.0**-23)).tolist()
    assert of_batches.with_inf(Pair(rows, [rows])).x[-1] == np.inf


def test_an_exception_is_told_where_it_was_raised():
    def deep():
        raise KeyError("no such feature")

    line = deep.__code__.co_firstlineno + 1
    with pytest.raises(LoopError, match=rf"KeyError: .* \(test_loop_input\.py:{line}\)"), blame_user_code("step"):
        deep()


@pytest.mark.parametrize(
    ("updates", "steps", "seen"),
    [
        ([2, 2], [1, 1], "the scaler is updated 2 times where optimizers step 1 time"),
        ([3, 4, 0], [2, 2, 1], "the scaler is updated 3 times where optimizers step 2 times"),
        ([2, 0], [1, 0], ""),  # one batch may be a guard's
        ([2, 1], [1, 1], ""),
    ],
)
def test_a_scaler_is_updated_too_often_where_each_of_several_batches_says_so(updates, steps, seen):
    found = _again(updates, steps, batches(), "optimizers step")
    assert (found.seen if found else "") == seen


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("form", [[], ["--report", "md"], ["--report", "html"]])
def test_the_command_says_why_a_law_is_not_asked(form, golden):
    code, text = run("check-loop", "my_loops:halved", "--law", "scale_is_invisible", *form)
    assert code == 0
    assert "my_loops:halved: scale_is_invisible is not asked: only up to factors of the scale, as " in text
    golden(text)
