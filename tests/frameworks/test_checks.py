"""A right adapter keeps every check; each planted bug dies by its check."""

import math
from collections.abc import Sequence
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from ampsim.core import dialects
from ampsim.core.machine import Rule, State, init
from ampsim.frameworks import REGISTRY, load
from ampsim.frameworks.adapter import Step
from ampsim.frameworks.checks import CHECKS, judge
from ampsim.frameworks.checks.drift import drawn_setting, drift, run
from ampsim.frameworks.checks.judging import CHOICE, promise
from ampsim.frameworks.checks.reports import NONE, reported
from ampsim.frameworks.checks.subject import (
    Driven,
    GaveUpError,
    UnaskableError,
    dialect_rule,
    largest_kept_scale,
    rule_fields,
    start_arguments,
    subject_of,
)
from tests.frameworks.faulty_adapters import PLANTED, Right

EXAMPLES = 15


@pytest.mark.parametrize("check", CHECKS)
def test_correct_scaler_passes_checks(check: str) -> None:
    verdict = judge(Right(), CHECKS[check], examples=EXAMPLES)
    assert verdict.result.outcome == (
        "skipped" if check == "minimum_scale_error_repeats" else "passed"
    ), verdict.seen


@pytest.mark.parametrize(
    ("check", "adapter"),
    [(check, adapter) for check, adapters in PLANTED.items() for adapter in adapters],
)
def test_seeded_fault_fails_its_check(check: str, adapter: type[Right]) -> None:
    verdict = judge(adapter(), CHECKS[check], examples=EXAMPLES)
    assert verdict.result.outcome == ("xfailed" if check in CHOICE else "failed")
    assert verdict.seen
    assert verdict.example is not None


def test_each_check_has_seeded_fault() -> None:
    assert PLANTED.keys() == CHECKS.keys() - {"minimum_scale_error_repeats"}


@pytest.mark.parametrize(
    ("check", "outcome"),
    [("overflow_backs_off_once", "xfailed"), ("scale_is_never_subnormal", "failed")],
)
def test_documented_deviation_xfails_except_extremes(check: str, outcome: str) -> None:
    class Documented(PLANTED[check][0]):  # type: ignore[misc]
        deviations = MappingProxyType({check: "on purpose: https://example.org"})

    class Kept(Right):
        deviations = MappingProxyType({check: "on purpose: https://example.org"})

    assert (
        judge(Documented(), CHECKS[check], examples=EXAMPLES).result.outcome == outcome
    )
    kept = judge(Kept(), CHECKS[check], examples=EXAMPLES).result.outcome
    assert kept == ("xpassed" if outcome == "xfailed" else "passed")


def test_issue_links_name_their_repository() -> None:
    torch, accelerate = load("torch")(), load("accelerate")()
    own, other = (
        reported(adapter, "scale_is_never_subnormal") for adapter in (torch, accelerate)
    )
    assert own.startswith(
        "reported of torch: https://github.com/pytorch/pytorch/issues/99640"
    )
    assert other == own.replace("reported of torch", "also seen in")
    assert reported(torch, "skips_stay_within_budget") == NONE
    checks = (
        "no_step_on_nonfinite_gradients",
        "scale_stays_within_bounds",
        "skips_stay_within_budget",
    )
    assert [promise(check).partition(":")[0] for check in checks] == [
        "torch",
        "the package",
        "ours",
    ]


@pytest.mark.parametrize(
    "check", ["no_nonfinite_step_below_scale_one", "finite_gradients_never_skip"]
)
def test_raising_step_passes_only_nonfinite_checks(check: str) -> None:
    class Loud(Right):
        def step(self, scaled: Sequence[float]) -> Step:
            if self.get_scale() < 1 or max(scaled) > 1e38:
                raise ValueError("out of range")
            return super().step(scaled)

    verdict = judge(Loud(), CHECKS[check])
    assert verdict.result.outcome == ("passed" if check.startswith("no_") else "failed")
    assert verdict.seen == (
        "" if check.startswith("no_") else "raised ValueError: out of range"
    )


def test_unsupported_constants_skip_check() -> None:
    class Picky(Right):
        def start(self, **constants: Any) -> None:
            if "growth_interval" in constants:
                raise ValueError("no interval, please")
            super().start(**constants)

    result = judge(Picky(), CHECKS["overflow_backs_off_once"], examples=EXAMPLES).result
    assert (result.outcome, result.text) == ("skipped", "no interval, please")


def test_missing_features_skip_checks() -> None:
    class SavesNothing(Right):
        def state_dict(self) -> object:
            raise NotImplementedError

    result = judge(
        SavesNothing(), CHECKS["state_dict_continues_run"], examples=1
    ).result
    assert (result.outcome, result.text) == ("skipped", "it is without state_dict")
    with pytest.raises(UnaskableError, match=r"^growth_factor is fixed$"):
        start_arguments(Torch(), {"growth_interval": 2, "growth_factor": 4.0})
    assert start_arguments(Torch(), {"growth_interval": 2, "growth_factor": 2.0}) == {
        "growth_interval": 2
    }


class OneFactor(Right):
    constants = MappingProxyType({"scale_factor": "factor"})


def test_single_factor_sets_growth_and_backoff() -> None:
    settings = [drawn_setting(OneFactor(), Random(seed)) for seed in range(9)]  # noqa: S311
    assert {each["growth_factor"] * each["backoff_factor"] for each in settings} == {
        1.0
    }
    assert len({each["growth_factor"] for each in settings}) > 2
    assert start_arguments(
        OneFactor(), {"growth_factor": 2.0, "backoff_factor": 0.25}
    ) == {"scale_factor": 4.0}
    possible = subject_of(OneFactor()).traits.possible(Rule(backoff_factor=2.0**-16))
    assert (possible.growth_factor, possible.backoff_factor) == (2.0**16, 2.0**-16)


@pytest.mark.parametrize("name", REGISTRY)
def test_deviations_and_constants_exist(name: str) -> None:
    adapter = load(name)
    assert adapter.deviations.keys() <= CHECKS.keys()
    options = dialects.ALL[adapter.dialect].options if adapter.dialect else {}
    assert adapter.constants.keys() == {*rule_fields(adapter).values()} | {
        name for name, theirs in adapter.constants.items() if theirs in options
    }


class Torch(Right):
    """The reference machine by torch's rule, which it says that it is."""

    dialect = "torch.amp.GradScaler"
    constants = MappingProxyType(
        {"init_scale": "init_scale", "growth_interval": "growth_interval"}
    )

    def start(self, **constants: Any) -> None:
        self.following = Rule(**constants)
        self.now = init(self.following)


class ForgetsItsMinimum(Torch):
    """The reference machine by jmp's rule under jit, which takes a minimum and keeps to 1."""

    dialect = "jmp.DynamicLossScale"
    options = MappingProxyType({"jit": True})
    constants = MappingProxyType(
        {
            "init_scale": "init_scale",
            "growth_interval": "growth_interval",
            "min_scale": "min_loss_scale",
        }
    )

    def start(self, **constants: Any) -> None:
        given = {self.constants[name]: value for name, value in constants.items()}
        self.following = dialects.get(self.dialect, **self.options, **given)
        self.now = init(self.following)


def test_accepted_minimum_scale_is_checked() -> None:
    assert drift(ForgetsItsMinimum(), histories=100).differing == 0
    outcome = judge(
        ForgetsItsMinimum(), CHECKS["overflow_backs_off_once"], examples=EXAMPLES
    ).result.outcome
    assert outcome == "failed"


def test_fixed_factors_limit_tested_rules() -> None:
    fixed, free = subject_of(Torch()), subject_of(Right())
    assert ("factors" in fixed.unsupported, "factors" in free.unsupported) == (
        True,
        False,
    )
    assert fixed.traits.possible(Rule(growth_factor=4.0, backoff_factor=0.25)) == Rule()


def test_max_scale_is_declared_or_observed() -> None:
    names = (
        "mxnet.contrib.amp.LossScaler",
        "mpx.DynamicLossScaling",
        "torch.amp.GradScaler",
    )
    assert [largest_kept_scale(dialects.get(each)) for each in names] == [
        2.0**24,
        65504.0,
        None,
    ]


class Late(Torch):
    dialect = "roundpipe.GradScaler[async]"

    def start(self, **constants: Any) -> None:
        self.following = Rule(delay=1, **constants)
        self.now = init(self.following)


class LateAndBacksOffByHalf(Late):
    def after(self, found_inf: bool) -> State:
        return super().after(found_inf and self.now.growth_tracker == 0)


def test_skip_budget_uses_newest_scale() -> None:
    outcomes = [
        judge(
            adapter(), CHECKS["skips_stay_within_budget"], examples=EXAMPLES
        ).result.outcome
        for adapter in (Late, LateAndBacksOffByHalf)
    ]
    assert outcomes == ["passed", "failed"]
    assert (
        judge(
            Late(), CHECKS["overflow_backs_off_once"], examples=EXAMPLES
        ).result.outcome
        == "failed"
    )


class GivesUp(Right):
    """The reference machine by DeepSpeed's rule, which gives up at its minimum."""

    dialect = "deepspeed.DynamicLossScaler"
    constants = MappingProxyType(
        {"init_scale": "init_scale", "growth_interval": "growth_interval"}
    )

    def start(self, **constants: Any) -> None:
        given = {self.constants[name]: value for name, value in constants.items()}
        self.following = dialects.get(self.dialect, **given)
        self.now = init(self.following)


class GivesUpInAnotherWay(GivesUp):
    def after(self, found_inf: bool) -> State:
        try:
            return super().after(found_inf)
        except Exception:
            self.following = self.following.replace(quirks=())
            self.now = State(0.0)
            raise

    def divide(self, scaled: Sequence[float], scale: float) -> tuple[float, ...]:
        return tuple(each / scale for each in scaled)


def test_checks_run_until_minimum_scale_error() -> None:
    for check in (
        "overflow_backs_off_once",
        "scale_is_never_subnormal",
        "minimum_scale_error_repeats",
    ):
        assert (
            judge(GivesUp(), CHECKS[check], examples=EXAMPLES).result.outcome
            == "passed"
        )
    verdict = judge(
        GivesUpInAnotherWay(), CHECKS["minimum_scale_error_repeats"], examples=EXAMPLES
    )
    assert (verdict.result.outcome, "then ZeroDivisionError" in verdict.seen) == (
        "failed",
        True,
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_triggers_minimum_scale_error(bad: float) -> None:
    adapter, given = GivesUp(), {"init_scale": 4.0}
    scaler = Driven(adapter, given, dialect_rule(adapter, given), frozenset())
    assert [scaler.step([1.0, bad]).used for _ in range(3)] == [4.0, 4.0, 2.0]
    with pytest.raises(GaveUpError):
        scaler.step([1.0, bad])


def test_scaler_assertion_passes_nonfinite_check() -> None:
    class Asserts(Right):
        def step(self, scaled: Sequence[float]) -> Step:
            assert all(map(math.isfinite, scaled))
            return super().step(scaled)

    assert (
        judge(
            Asserts(), CHECKS["no_step_on_nonfinite_gradients"], examples=EXAMPLES
        ).result.outcome
        == "passed"
    )
    verdict = judge(Asserts(), CHECKS["overflow_backs_off_once"], examples=EXAMPLES)
    assert (verdict.result.outcome, verdict.seen.partition(":")[0]) == (
        "failed",
        "raised AssertionError",
    )


class GrowsEarly(Torch):
    def after(self, found_inf: bool) -> State:
        after = super().after(found_inf)
        return State(after.scale, after.growth_tracker + 1) if found_inf else after


def test_differing_dialect_is_detected() -> None:
    same, differs = (drift(adapter(), histories=100) for adapter in (Torch, GrowsEarly))
    assert (same.differing, same.refused, same.first) == (0, 0, "")
    assert differs.differing > 10
    assert " x..: the package 3 1.5 3 3, the dialect 3 1.5 1.5 3" in differs.first, (
        "the shortest"
    )


def test_rejected_settings_are_generated_again() -> None:
    class Picky(Torch):
        def start(self, **constants: Any) -> None:
            if constants.get("init_scale") != 3.0:
                raise ValueError("another, please")
            super().start(**constants)

    class Never(Torch):
        def start(self, **constants: Any) -> None:
            raise ValueError("none, please")

    picky, never = drift(Picky(), histories=100), drift(Never(), histories=60)
    assert (picky.refused, picky.differing, picky.iterations > 100) == (0, 0, True)
    assert (never.refused, never.iterations, never.first) == (60, 0, "")


def test_scales_before_minimum_error_are_compared() -> None:
    used, followed = run(GivesUp(), {"init_scale": 4.0}, [True] * 9)
    assert used == followed == [4.0, 4.0, 2.0, None]
