"""A right scaler passes, whatever its errors, its constructor, its arithmetic, or its framework."""

import subprocess
import sys
import threading
from functools import partial

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from ampsim.core.machine import Rule, init, update  # noqa: E402
from ampsim.testing import (  # noqa: E402
    FoundInfAdapter,
    Subject,
    Traits,
    check_scaler,
    known_failures,
    parametrize_with_checks,
)
from ampsim.testing.check import BrokenError, RaisedError  # noqa: E402
from ampsim.testing.scaler_checks import run as judge  # noqa: E402
from tests.testing.handwritten_scalers import Stranger  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("few_schedules")
FEW = 10
QUEUE = "queued_gradients_keep_their_scale"
CHECKS = {check.name: check for check in judge.chosen()}


def findings(target, examples=FEW):
    """The names of the checks that fail."""
    return {
        each.check.name
        for each in judge.run_checks(target, judge.chosen(), examples=examples)
        if each.is_finding
    }


def test_handwritten_scaler_passes():
    check_scaler(Stranger, examples=FEW)


def test_drop_in_must_match_torch_errors():
    with pytest.raises(
        BrokenError,
        match=r"raised MisuseError\(",
    ):
        CHECKS["call_sequences_match_torch"](Subject(Stranger, Traits(drop_in=True)))


class ConvertsLoss(Stranger):
    """As DeepSpeed's: the loss is converted to float32, also from float64."""

    def scale(self, outputs):
        if isinstance(outputs, torch.Tensor):
            outputs = outputs.float()
        return super().scale(outputs)


def test_loss_may_become_float32():
    check = CHECKS["loss_is_multiplied_by_scale"]
    check(ConvertsLoss)
    with pytest.raises(BrokenError, match="became"):
        check(Subject(ConvertsLoss, Traits(drop_in=True)))


# ---------------------------------------------------------------------------- how it is constructed


class Wraps:
    """No base says what it takes: it is taken for torch's."""

    def __init__(self, **kwargs):
        self.inner = torch.amp.GradScaler(**kwargs)

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)


class Holds:
    """Holds torch's scaler, whose constants its constructor hands on behind a device."""

    def __init__(self, device="cpu", **kwargs):
        self.inner = torch.amp.GradScaler(device, **kwargs)

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


@pytest.mark.parametrize(
    "target",
    [
        Wraps,
        Holds,
        partial(torch.amp.GradScaler, "cpu"),
        Subject(Stranger, Traits()),
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_constructor_gets_torch_arguments(target):
    subject = judge.as_subject(target)
    scaler = subject.make(
        Rule(init_scale=8.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7)
    )
    got = (
        scaler.get_scale(),
        scaler.get_growth_factor(),
        scaler.get_backoff_factor(),
        scaler.get_growth_interval(),
    )
    assert got == (8.0, 3.0, 0.25, 7)
    assert subject.make(Rule(init_scale=8.0), enabled=False).get_scale() == 1.0
    assert "enabled" not in subject.unsupported


def test_rule_argument_is_passed():
    class Ruled:
        def __init__(self, rule, **options):
            self.rule = rule

    assert Subject(Ruled).make(Rule(init_scale=8.0)).rule == Rule(init_scale=8.0)
    assert "enabled" in Subject(Ruled).unsupported


def test_unclear_constructor_raises():
    class Hides(Holds):
        def __init__(self, kind="cpu", **kwargs):
            self.inner = torch.amp.GradScaler(kind, **kwargs)

    class OwnNames:
        def __init__(self, initial=65536.0, every=2000):
            pass

    class OfARule(Holds):
        def __init__(self, rule, **kwargs):
            self.inner = torch.amp.GradScaler("cpu", rule.init_scale, **kwargs)

    with pytest.raises(
        TypeError, match="Hides has neither a parameter init_scale nor a rule"
    ):
        judge.as_subject(Hides)
    with pytest.raises(TypeError, match=r"return OwnNames\(rule.init_scale"):
        judge.as_subject(OwnNames)
    assert judge.as_subject(OfARule).make(Rule(init_scale=8.0)).get_scale() == 8.0


# ------------------------------------------------------------------------------------------------
# what it declares


class KeepsDouble(Stranger):
    """As DeepSpeed's and keras's: the scale is a Python float, and no growth of it is too large."""

    def __init__(self, init_scale=2.0**16, *args, **kwargs):
        super().__init__(init_scale, *args, **kwargs)
        self.now = (init_scale, 0)

    def lowered(self, scale):
        return max(scale * self.down, 2.0**-126)

    def raised(self, scale):
        return scale * self.up

    def override(self, new_scale):
        self.now = (float(new_scale), self.now[1])


def test_double_precision_scale_is_a_trait():
    check_scaler(KeepsDouble, traits=Traits(scale_dtype="float64"), examples=FEW)
    with pytest.raises(BrokenError, match="scale_is_exact_float32"):
        CHECKS["scale_is_exact_float32"](Subject(KeepsDouble, Traits(drop_in=True)))


def found_inf_adapter(rule):
    inner = Stranger(
        rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval
    )
    return FoundInfAdapter(inner.get_scale, inner.advance)


def test_missing_adapter_features_are_detected():
    results = check_scaler(found_inf_adapter, examples=FEW)
    assert {result.outcome for result in results} == {"passed", "skipped"}
    skipped = {result.text for result in results if result.outcome == "skipped"}
    assert {
        "unsupported: setters (declared by the scaler)",
        "unsupported: state_dict (declared by the scaler)",
    } < skipped


# -------------------------------------------------------------------------------------------------
# the machine


def machine(rule):
    states = [init(rule)]
    return FoundInfAdapter(
        lambda: states[-1].scale,
        lambda found: states.append(update(rule, states[-1], found)),
    )


def test_reference_fails_known_checks():
    results = [*judge.run_checks(machine, judge.chosen(), examples=4)]
    assert {each.check.name for each in results if each.outcome == "failed"} == {
        "scale_recovers_after_overflows",  # as torch's: 0 * growth is 0
        "scale_is_never_subnormal",
    }
    assert sum(each.outcome == "passed" for each in results) > 10


def test_missing_torch_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; from ampsim.testing import check_scaler"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError" in done.stderr
    assert ".[torch]" in done.stderr


# ---------------------------------------------------------------- a failure is of the kind expected


class RaisesInStateDict(Stranger):
    def load_state_dict(self, saved):
        raise ZeroDivisionError("of another kind")


def test_expected_failure_matches_its_kind():
    check = CHECKS["state_dict_continues_run"]
    with pytest.raises(RaisedError):
        check(RaisesInStateDict, examples=FEW)

    def outcome(reason):
        (result,) = judge.run_checks(
            RaisesInStateDict, [check], examples=FEW, expected={check.name: reason}
        )
        return result.outcome

    assert outcome("loses the streak") == "failed"
    assert outcome("raised ZeroDivisionError: not yet") == "xfailed"


def test_expected_failure_may_not_pass():
    (result,) = judge.run_checks(
        Stranger,
        [CHECKS["skips_stay_within_budget"]],
        examples=FEW,
        expected={"skips_stay_within_budget": ""},
    )
    assert result.outcome == "xpassed"


class OppositeLocks(torch.amp.GradScaler):
    """Two locks, taken by one call in one order and by another in the other."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._first, self._second = threading.Lock(), threading.Lock()

    def update(self, new_scale=None):
        with self._first, self._second:
            super().update(new_scale)

    def state_dict(self):
        with self._second, self._first:
            return super().state_dict()


def test_expected_failure_hides_no_deadlock():
    check = CHECKS["state_dict_is_atomic"]
    (result,) = judge.run_checks(OppositeLocks, [check], expected=known_failures.TORCH)
    assert result.outcome == "failed"
    assert result.text.startswith(f"{check.name}: raised DeadlockError")
    (mark,) = (
        parametrize_with_checks([OppositeLocks], expected_failures=known_failures.TORCH)
        .args[1][[each.name for each in judge.chosen()].index(check.name)]
        .marks
    )
    with pytest.raises(AssertionError) as failure:
        check(OppositeLocks)
    assert not isinstance(failure.value, mark.kwargs["raises"])
