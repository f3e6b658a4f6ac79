"""Examples are generated once, run once, and shrunk when one fails; profiles and seeds choose them."""

from collections import Counter

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from ampsim.testing import FoundInfAdapter, Subject, examples
from ampsim.testing.scaler_checks import CHECKS
from ampsim.testing.scaler_checks.run import run_checks

MANY = examples.Examples(60, examples.SEED)
DRAWS = (("flags", st.lists(st.booleans(), min_size=1, max_size=4)),)


def test_each_example_runs_once():
    seen = Counter()
    examples.run(
        lambda flags: seen.update([tuple(flags)]), DRAWS, MANY, [{"flags": [True] * 9}]
    )
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
        examples.run(example, DRAWS, MANY)
    assert failed[-1] == [True, True]
    before = examples.generated(DRAWS, MANY).values()
    assert max(passed[tuple(drawn["flags"])] for drawn in before) == 1


def test_flaky_failure_is_still_reported():
    failures = [ZeroDivisionError("once")]

    def example(flags):
        if len(flags) == 3 and failures:
            raise failures.pop()

    with pytest.raises(ZeroDivisionError, match="once"):
        examples.run(example, DRAWS, MANY)


@pytest.fixture
def profile():
    """Load a profile by its settings, for one test."""
    before = settings.get_current_profile_name()

    def load(**values):
        settings.register_profile("theirs", settings(**values))
        settings.load_profile("theirs")

    yield load
    settings.load_profile(before)


def test_profile_chooses_the_examples(profile, monkeypatch):
    monkeypatch.setattr("hypothesis.core.global_force_seed", None)
    profile(max_examples=7, derandomize=True)
    assert examples.choose() == (7, examples.SEED)
    profile(max_examples=200, derandomize=False)
    assert examples.choose().number == 200
    assert examples.choose() == examples.choose()  # one seed in a process
    assert examples.choose(5, 3) == (5, 3)
    monkeypatch.setattr("hypothesis.core.global_force_seed", 11)
    assert examples.choose(5) == (5, 11)


def test_plain_hypothesis_repeats_examples(monkeypatch):
    monkeypatch.setattr("hypothesis.core.global_force_seed", None)
    before = settings.get_current_profile_name()
    settings.load_profile("default")
    try:
        assert examples.choose() == (examples.DEFAULT, examples.SEED)
        assert examples.choose().is_default
    finally:
        settings.load_profile(before)


def test_seed_changes_the_examples():
    first, second = (
        examples.generated(DRAWS, examples.Examples(20, seed)) for seed in (1, 2)
    )
    assert first.keys() != second.keys()


def test_profile_without_shrinking(profile):
    profile(phases=[Phase.generate])
    failed = []

    def example(flags):
        failed.append(len(flags))
        assert len(flags) < 2

    with pytest.raises(AssertionError):
        examples.run(example, DRAWS, MANY)
    calls = len(failed)
    profile(phases=[Phase.generate, Phase.shrink])
    with pytest.raises(AssertionError):
        examples.run(example, DRAWS, MANY)
    assert len(failed) - calls > calls  # shrinking takes more calls


def test_checks_share_one_scaler_run():
    made = []

    def make(rule):
        made.append(rule)
        return FoundInfAdapter(lambda: rule.init_scale, lambda found_inf: None)

    subject = Subject(make)
    checks = [
        "finite_step_never_lowers_scale",
        "finite_step_never_lowers_scale",
        "overflow_backs_off_once",
    ]
    (passed,) = run_checks(subject, [CHECKS[checks[0]]])
    once = len(made)
    (passed_too,) = run_checks(subject, [CHECKS[checks[1]]])
    assert (passed.outcome, passed_too.outcome, len(made)) == (
        "passed",
        "passed",
        once + 1,
    )  # it is tried out
    (broken,) = run_checks(subject, [CHECKS[checks[2]]])
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
        for number, (param, optimizer) in enumerate(
            zip(params, optimizers, strict=True)
        ):
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
    assert [float(each) for each in scaler.scale([torch.ones(()), torch.ones(())])] == [
        4.0,
        4.0,
    ]
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scale[0], param.grad = 2.0, torch.tensor([8.0])
    scaler.step(optimizer)
    assert param.tolist() == [-2.0]
