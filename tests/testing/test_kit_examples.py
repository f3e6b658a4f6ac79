"""Examples of the kit: drawn once, run once, and shrunk when one fails."""

from collections import Counter

import pytest
from hypothesis import strategies as st

from ampsim.testing import FoundInfAdapter, Subject, examples
from ampsim.testing.kit.checks import CHECKS
from ampsim.testing.kit.judge import judge

DRAWS = (("flags", st.lists(st.booleans(), min_size=1, max_size=4)),)


def test_each_example_runs_once():
    seen = Counter()
    examples.run(lambda flags: seen.update([tuple(flags)]), DRAWS, [{"flags": [True] * 9}], 60)
    assert next(iter(seen)) == (True,) * 9
    assert len(seen) > 10
    assert set(seen.values()) == {1}


def test_last_failing_example_is_minimal():
    passed, failed = Counter(), []

    def example(flags):
        if sum(flags) >= 2:
            failed.append(flags)
            raise ValueError(flags)
        passed[tuple(flags)] += 1

    with pytest.raises(ValueError, match="True, True"):
        examples.run(example, DRAWS, (), 60)
    assert failed[-1] == [True, True]
    before = examples.drawn_by(DRAWS, 60).values()
    assert max(passed[tuple(drawn["flags"])] for drawn in before) == 1


def test_flaky_failure_is_still_reported():
    failures = [ZeroDivisionError("once")]

    def example(flags):
        if len(flags) == 3 and failures:
            raise failures.pop()

    with pytest.raises(ZeroDivisionError, match="once"):
        examples.run(example, DRAWS, (), 60)


def test_checks_share_one_scaler_run():
    made = []

    def make(rule):
        made.append(rule)
        return FoundInfAdapter(lambda: rule.init_scale, lambda found_inf: None)

    subject = Subject(make)
    checks = [
        "finite_step_never_lowers_scale",
        "overflow_never_raises_scale",
        "overflow_backs_off_once",
    ]
    (passed,) = judge(subject, [CHECKS[checks[0]]])
    once = len(made)
    (passed_too,) = judge(subject, [CHECKS[checks[1]]])
    assert (passed.outcome, passed_too.outcome, len(made)) == (
        "passed",
        "passed",
        once + 1,
    )  # it is tried out
    (broken,) = judge(subject, [CHECKS[checks[2]]])
    assert "history  inf\n" in broken.text
    assert "init_scale=65536.0," in broken.text


def test_flag_adapter_divides_by_tiny_scales():
    torch = pytest.importorskip("torch")
    scaler = FoundInfAdapter(lambda: 2.0**-130, lambda found_inf: None)
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler.scale(torch.ones(()))
    param.grad = torch.tensor([1.0, 3.0]) * 2.0**-130
    scaler.step(optimizer)
    assert param.tolist() == [-1.0, -3.0]


def test_flag_adapter_reports_each_overflow_once():
    torch = pytest.importorskip("torch")
    told = []
    scaler = FoundInfAdapter(lambda: 2.0, told.append)
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [torch.optim.SGD([each], lr=1.0) for each in params]
    for bad in (0, 1, None):
        scaler.scale(torch.ones(()))
        for number, (param, optimizer) in enumerate(zip(params, optimizers, strict=True)):
            param.grad = torch.tensor([2.0, float("nan") if number == bad else 2.0])
            scaler.step(optimizer)
        scaler.update()
    assert told == [True, True, False]
    assert [param.tolist() for param in params] == [
        [-1.0, -1.0]
    ] * 2  # of three steps one was skipped


def test_flag_adapter_unscales_by_loss_scale():
    torch = pytest.importorskip("torch")
    scale = [4.0]
    scaler = FoundInfAdapter(lambda: scale[0], lambda found_inf: None)
    assert [float(each) for each in scaler.scale([torch.ones(()), torch.ones(())])] == [4.0, 4.0]
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scale[0], param.grad = 2.0, torch.tensor([8.0])
    scaler.step(optimizer)
    assert param.tolist() == [-2.0]
