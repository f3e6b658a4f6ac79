"""A finding that a declaration would excuse says which; and what is declared lets a right scaler
pass.
"""

import math
from contextlib import suppress
from dataclasses import fields

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from ampsim.testing import Traits, check_scaler, known_failures, parametrize_with_checks  # noqa: E402
from ampsim.testing.check import BrokenError  # noqa: E402
from ampsim.testing.construction import CONSTANTS  # noqa: E402
from ampsim.testing.examples import Examples  # noqa: E402
from ampsim.testing.scaler_checks import run as judge  # noqa: E402
from ampsim.testing.scaler_checks.subject import Subject, as_subject  # noqa: E402
from ampsim.testing.scaler_checks.suggest_traits import (  # noqa: E402
    DECLARED,
    SENTENCES,
    propose,
    questions,
)
from ampsim.testing.scaler_checks.traits import CLAIMED  # noqa: E402
from ampsim.torch import AsyncGradScaler  # noqa: E402
from tests.testing.handwritten_scalers import (  # noqa: E402
    DividesTwice,
    HasAFloorOfOne,
    HasMaxScale,
    MisuseError,
    Stranger,
    UnscalesByTheScaleOfTheMoment,
)
from tests.testing.test_handwritten_scalers import KeepsDouble  # noqa: E402
from tests.testing.test_scaler_checks import AllOrNone  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("few_schedules")
FEW = 6
CHECKS = {check.name: check for check in judge.chosen()}


class Exponent(Stranger):
    """Its scale is an exponent, an int, and so are the logarithms of its factors."""

    def __init__(
        self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, *args, **kwargs
    ):
        if any(
            math.frexp(each)[0] != 0.5
            for each in (init_scale, growth_factor, backoff_factor)
        ):
            raise ValueError("expected powers of two")
        super().__init__(init_scale, growth_factor, backoff_factor, *args, **kwargs)

    def override(self, new_scale):
        if math.frexp(new_scale)[0] != 0.5:
            raise ValueError(f"{new_scale}: expected a power of two")
        super().override(new_scale)

    def set_growth_factor(self, value):
        assert math.frexp(value)[0] == 0.5
        self.up = value

    def set_backoff_factor(self, value):
        assert math.frexp(value)[0] == 0.5
        self.down = value


class Static(Stranger):
    """Its scale stays where it was set."""

    def advance(self, found):
        pass


@pytest.mark.parametrize(
    ("scaler", "declared", "accused"),
    [
        (
            Exponent,
            Traits(powers_of_two=True),
            "scale_is_exact_float32: raised ValueError: expected powers of two",
        ),
        (Static, Traits(static=True), "overflow_backs_off_once: "),
    ],
)
def test_finding_suggests_trait_option(scaler, declared, accused):
    check_scaler(scaler, traits=declared, levels=[0, 2, 4], examples=FEW)
    with pytest.raises(AssertionError, match=f"^{accused}") as failure:
        CHECKS[accused.partition(":")[0]](scaler, examples=FEW)
    name, value = declared.as_options()[1].split("=")
    assert (
        f"declare it with Traits({name}={value}), or in the shell: --trait {name}={value}"
        in str(failure.value)
    )


class GivesUp(Stranger):
    def lowered(self, scale):
        if scale <= 1.0:
            raise OverflowError("no scale is low enough")
        return super().lowered(scale)


class NoSetters(Stranger):
    set_growth_factor = property()


class TakesAgain(Stranger):
    def unscale_(self, optimizer):
        with suppress(Exception):
            super().unscale_(optimizer)


class AcceptsMisuse(Stranger):
    def step(self, optimizer, *args, **kwargs):
        with suppress(MisuseError):
            return super().step(optimizer)

    def update(self, *args):
        with suppress(MisuseError):
            super().update(*args)


class ReturnsNothing(Stranger):
    def step(self, optimizer, *args, **kwargs):
        super().step(optimizer, *args, **kwargs)


class TellsNoSkip(Stranger):
    last_step = property(fset=lambda *_: None)


class Patient(Stranger):
    """Backs off at each second overflow, or at each second one in a row."""

    left, in_a_row = 2, False

    def advance(self, found):
        self.left = self.left - 1 if found else 2 if self.in_a_row else self.left
        if found and self.left:
            self.now = (self.now[0], 0)
            return
        super().advance(found)
        self.left = 2 if found else self.left


class PatientInARow(Patient):
    in_a_row = True


def late(rule):
    return AsyncGradScaler("cpu", *(getattr(rule, each) for each in CONSTANTS), depth=1)


class KnowsNoFactors(Stranger):
    def __init__(
        self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, *args, **kwargs
    ):
        super().__init__(init_scale, 2.0, 0.5, *args, **kwargs)


class SavesNoConstants(Stranger):
    def state_dict(self):
        return {"now": self.now}

    def load_state_dict(self, saved):
        self.now = saved["now"]


class RestoresNoConstants(Stranger):
    def load_state_dict(self, saved):
        self.now = (saved["S"], saved["n"])


class SavesHalf(SavesNoConstants):
    def load_state_dict(self, saved):
        scale, streak = saved["now"]
        self.now = (scale, max(0, streak - 1))


class BacksOffByGrowth(Stranger):
    def lowered(self, scale):
        return scale / self.up


class Stuck(Stranger):
    """After one overflow it sees an overflow in each step."""

    found = False

    def advance(self, found):
        self.found = self.found or found
        super().advance(self.found)

    def lowered(self, scale):
        return max(super().lowered(scale), 1.0)

    def raised(self, scale):
        return min(super().raised(scale), 2.0**24)


class NoFloor(Stranger):
    def lowered(self, scale):
        return scale * self.down


class ClaimsNothing(AcceptsMisuse):
    supported = frozenset()


class SavesNothing(Stranger):
    state_dict = property()


class TakesNoScale(Stranger):
    def update(self):
        super().update()


@pytest.mark.parametrize(
    ("scaler", "check", "declared"),
    [
        (Patient, "overflow_backs_off_once", "Traits(hysteresis=2)"),
        (
            Patient,
            "scale_is_exact_float32",
            "hysteresis=2, hysteresis_reset={'backoff'}",
        ),
        (
            PatientInARow,
            "scale_is_exact_float32",
            "hysteresis_reset={'backoff', 'clean'}",
        ),
        (late, "overflow_backs_off_once", "Traits(delay=1)"),
        (AllOrNone, "optimizers_share_one_scale", "Traits(skips='all')"),
        (KeepsDouble, "scale_is_never_infinite", "Traits(scale_dtype='float64')"),
        (KnowsNoFactors, "scale_is_exact_float32", "Traits(unsupported={'factors'})"),
        (SavesNothing, DECLARED, "Traits(unsupported={'state_dict'})"),
        (
            SavesNoConstants,
            "state_dict_continues_run",
            "Traits(unsupported={'saved_constants'})",
        ),
        (TakesNoScale, DECLARED, "Traits(unsupported={'override'})"),
        (TellsNoSkip, DECLARED, "unsupported={'skip_report'}"),
        (HasAFloorOfOne, "overflow_backs_off_once", "min_scale=1.0"),
        (HasMaxScale, "scale_is_exact_float32", "max_scale=65536.0"),
        (GivesUp, "overflow_backs_off_once", "gives_up=(OverflowError,)"),
        (ReturnsNothing, "step_returns_optimizer_result", "unsupported={'step_value'}"),
        (NoSetters, DECLARED, "unsupported={'setters'}"),
        (AcceptsMisuse, "misuse_raises", "unsupported={'misuse_errors'}"),
        (TakesAgain, "call_sequences_match_torch", "unsupported={'misuse_errors'}"),
    ],
)
def test_finding_names_its_trait(scaler, check, declared):
    with pytest.raises(
        AssertionError, match="\n  hint     if intentional, declare it "
    ) as failure:
        CHECKS[check](scaler, examples=FEW)
    assert declared in str(failure.value).splitlines()[2]


def test_hint_names_checks_it_skips():
    with pytest.raises(AssertionError) as failure:
        CHECKS["misuse_raises"](AcceptsMisuse, examples=FEW)
    (_, skipped) = str(failure.value).splitlines()[2].split("; this skips ")
    needing = {name for name, each in CHECKS.items() if "misuse_errors" in each.needs}
    assert {*skipped.split(", ")} == needing


def test_each_proposed_trait_is_a_question():
    traits = Traits(
        hysteresis=2, hysteresis_reset="clean,backoff", unsupported={"setters"}
    )
    assert [*questions(as_subject(NoSetters), traits)] == [
        "hysteresis=2: overflows that a backoff takes: intended?",
        "hysteresis_reset={'backoff', 'clean'}: what restarts the count of overflows: intended?",
        f"setters: not supported ({as_subject(NoSetters).missing['setters']}): intended?",
    ]
    assert {each.name for each in fields(Traits)} - SENTENCES.keys() == {
        "drop_in",
        "unsupported",
    }


class NeverGrows(torch.amp.GradScaler):
    def update(self, new_scale=None):
        before = self._scale.clone()
        super().update(new_scale)
        self._scale.copy_(torch.minimum(before, self._scale))


def test_unfixable_finding_suggests_no_trait():
    for check in ("growth_waits_for_interval", "optimizers_share_one_scale"):
        with pytest.raises(BrokenError) as failure:
            CHECKS[check](NeverGrows, examples=60)
        assert "  hint " not in str(failure.value)


class HasAFloor(torch.amp.GradScaler):
    def update(self, new_scale=None):
        super().update(new_scale)
        self._scale.clamp_(min=1.0)


def test_known_failure_may_pass(monkeypatch):
    [check] = judge.chosen(names=["scale_recovers_after_overflows"])
    floored = as_subject(HasAFloor, Traits(min_scale=1.0))
    for expected in ({}, known_failures.TORCH):
        [result] = judge.run_checks(floored, [check], expected=expected)
        assert result.outcome == "passed"
    own = {check.name: "a reason of its own"}
    [result] = judge.run_checks(floored, [check], expected=own)
    assert result.outcome == "xpassed"


@pytest.mark.parametrize(
    ("scaler", "name", "is_known"),
    [
        (HasAFloor, "gradients_are_divided_once", True),
        (
            UnscalesByTheScaleOfTheMoment,
            "update_between_steps_keeps_gradients_correct",
            True,
        ),
        (torch.amp.GradScaler, "scale_is_never_subnormal", True),
        (NoFloor, "scale_is_never_subnormal", False),  # of its own making
    ],
)
def test_torch_failures_are_expected(scaler, name, is_known):
    [check] = judge.chosen(names=[name])

    def outcome(**options):
        [result] = judge.run_checks(scaler, [check], examples=FEW, **options)
        [case] = parametrize_with_checks([scaler], checks=[name], **options).args[1]
        marks = [(mark.name, mark.kwargs["strict"]) for mark in case.marks]
        assert marks == [("xfail", False)] * (result.outcome == "xfailed")
        return result.outcome

    assert outcome() == ("xfailed" if is_known else "failed")
    assert outcome(strict=True) == "failed"


def test_claimed_features_are_asked():
    names = [name for name, each in CHECKS.items() if {*each.needs} & CLAIMED]
    checks = judge.chosen(names=names)
    results = [*judge.run_checks(ClaimsNothing, checks, examples=FEW)]
    assert {each.outcome for each in results} == {"skipped"}
    assert {
        name: reason
        for name, reason in as_subject(ClaimsNothing).unsupported.items()
        if name in CLAIMED
    } == {
        name: "asked of subclasses of torch's scaler, or with "
        f"Traits(supported={{{name!r}}})"
        for name in CLAIMED
    }
    for traits in (Traits(supported=CLAIMED), Traits(drop_in=True)):
        claims = as_subject(ClaimsNothing, traits)
        assert not claims.unsupported.keys() & CLAIMED
    [result] = judge.run_checks(claims, judge.chosen(names=["misuse_raises"]))
    assert result.outcome == "failed"


class LosesItsStreak(NoSetters):
    """Lacks what is optional, and has a fault that a missing method must not hide."""

    last_step = property(fset=lambda *_: None)

    def state_dict(self):
        return {**super().state_dict(), "n": 0}


FAULTY = [
    DECLARED,
    "setters_take_effect",
    "skipped_step_changes_nothing",
    "state_dict_continues_run",
]


def test_missing_method_hides_no_fault():
    results = judge.run_checks(LosesItsStreak, judge.chosen(names=FAULTY), examples=60)
    failed = [each.check.name for each in results if each.is_finding]
    assert failed == [DECLARED, "state_dict_continues_run"]


def passes(check, scaler):
    return check.passes(scaler, Examples(60, 1))


@pytest.mark.parametrize(
    ("scaler", "name"),
    [
        (RestoresNoConstants, "state_dict_continues_run"),
        (SavesHalf, "state_dict_continues_run"),
        (TakesAgain, "call_sequences_match_torch"),
        (AcceptsMisuse, "misuse_raises"),
        (
            UnscalesByTheScaleOfTheMoment,
            "update_between_steps_keeps_gradients_correct",
        ),
    ],
)
def test_proposal_excuses_no_failure(scaler, name):
    checks = judge.chosen(names=[name])
    proposed = propose(as_subject(scaler), checks, passes)
    assert "misuse_errors" not in proposed.traits.unsupported
    assert not passes(checks[0], proposed)


def test_proposal_leaves_the_fault():
    checks = judge.chosen(names=FAULTY)
    scaler = propose(as_subject(LosesItsStreak), checks, passes)
    assert scaler.traits == Traits(unsupported={"setters", "skip_report"})
    failed = [
        each
        for each in judge.run_checks(scaler, checks, examples=60)
        if each.is_finding
    ]
    assert {each.check.name for each in failed} == {"state_dict_continues_run"}


@pytest.mark.parametrize(
    ("scaler", "declared"),
    [
        (torch.amp.GradScaler, Traits()),
        (Stranger, Traits()),
        (NeverGrows, Traits()),
        (HasMaxScale, Traits(max_scale=2.0**16)),
        (SavesNoConstants, Traits(unsupported={"saved_constants"})),
        (BacksOffByGrowth, Traits(unsupported={"factors"})),
        # Its fault keeps each check failing, with the bounds and without.
        (Stuck, Traits(min_scale=1.0, max_scale=2.0**24)),
    ],
)
def test_observed_facts_are_proposed(scaler, declared):
    checks = judge.chosen(names=["finite_step_never_lowers_scale"])
    assert propose(as_subject(scaler), checks, passes).traits == declared


@pytest.mark.parametrize(
    ("scaler", "name", "seen"),
    [
        (Stuck, "finite_step_never_lowers_scale", "32768.0 -> 16384.0"),
        (SavesHalf, "state_dict_continues_run", "after resuming the scales are "),
        (DividesTwice, "call_sequences_match_torch", "step left the gradient "),
    ],
)
def test_fault_is_shown_alone(scaler, name, seen):
    with pytest.raises(AssertionError, match=f"^{name}: {seen}") as failure:
        CHECKS[name](scaler, examples=60)
    assert "  hint " not in str(failure.value)


class PatientKeepsItsStreak(Patient):
    """An overflow that it tolerates leaves the growth tracker as it was."""

    def advance(self, found):
        _, streak = self.now
        super().advance(found)
        if found and self.left < 2:
            self.now = (self.now[0], streak)


def test_commands_have_the_observed_traits():
    subject = Subject(PatientKeepsItsStreak, name="mine:Patient")
    with pytest.raises(AssertionError) as failure:
        CHECKS["growth_waits_for_interval"](subject, examples=60)
    emit = str(failure.value).partition("  emit ")[2]
    assert "hysteresis=2" in emit
