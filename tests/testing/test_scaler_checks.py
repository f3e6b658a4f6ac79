"""The checks on real scalers: what passes, what fails as known, and what a failure says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from ampsim import dialects, init, update  # noqa: E402
from ampsim.cli.options import declared_traits  # noqa: E402
from ampsim.core.machine import Rule  # noqa: E402
from ampsim.testing import (  # noqa: E402
    FoundInfAdapter,
    Subject,
    Traits,
    check_scaler,
    check_threads,
    known_failures,
    parametrize_with_checks,
)
from ampsim.testing.check import RaisedError  # noqa: E402
from ampsim.testing.examples import Examples  # noqa: E402
from ampsim.testing.scaler_checks import run as judge  # noqa: E402
from ampsim.testing.scaler_checks.subject import as_subject, find  # noqa: E402
from ampsim.testing.scaler_checks.traits import FEATURES  # noqa: E402
from ampsim.torch import AsyncGradScaler, GradScaler  # noqa: E402
from tests.test_cli import run  # noqa: E402
from tests.testing.handwritten_scalers import DividesBeforeItRefuses  # noqa: E402

torch.set_num_threads(1)
TORCH = torch.amp.GradScaler
CHECKS = {check.name: check for check in judge.chosen()}
FEW = 4  # examples per check: enough to find every known failure; a user's run has more


def constants(rule: Rule) -> tuple[float, ...]:
    return (
        rule.init_scale,
        rule.growth_factor,
        rule.backoff_factor,
        rule.growth_interval,
    )


# ------------------------------------------------------------------------------------------------
# real scalers


# Reasons of its own are strict: what torch no longer fails fails here.
@parametrize_with_checks(
    [Subject(TORCH, Traits(drop_in=True))],
    expected_failures={
        name: f"{why} (torch)" for name, why in known_failures.TORCH.items()
    },
)
def test_torch_fails_only_known_checks(scaler, check):
    check(scaler, examples=FEW)


@parametrize_with_checks(
    [Subject(GradScaler, Traits(drop_in=True))],
    expected_failures={
        "state_dict_is_atomic": "scale and growth tracker are read one after the other",
        "no_nonfinite_step_after_unscale": "as torch's, unless check_at_step=True",
    },
    strict=True,
)
def test_ampsim_scaler_conforms(scaler, check):
    check(scaler, examples=FEW)


def test_check_at_step_finds_late_inf():
    def make(rule: Rule) -> GradScaler:
        return GradScaler("cpu", *constants(rule), check_at_step=True)

    check_scaler(
        make, checks=["no_nonfinite_step_after_unscale", "gradients_are_divided_once"]
    )


def test_async_scaler_conforms_at_depth_1(few_schedules):
    def make(rule: Rule) -> AsyncGradScaler:
        return AsyncGradScaler("cpu", *constants(rule), depth=1)

    check_scaler(
        make,
        traits=Traits(delay=1, unsupported={"pickle"}),
        levels=[0, 2, 3, 4],
        examples=3,
    )


# ------------------------------------------------------------------------------------------------------
# traits


def megatrons(rule: Rule) -> FoundInfAdapter:
    """A backoff takes two overflows, and none leads below 1."""
    theirs = dialects.get(
        "megatron.core.DynamicGradScaler",
        init_scale=rule.init_scale,
        growth_interval=rule.growth_interval,
    )
    theirs = theirs.replace(
        min_scale=1.0,
        growth_factor=rule.growth_factor,
        backoff_factor=rule.backoff_factor,
    )
    state = [init(theirs)]

    def update_scale(found_inf: bool) -> None:
        state[0] = update(theirs, state[0], found_inf)

    return FoundInfAdapter(lambda: state[0].scale, update_scale)


def test_declared_policy_passes():
    declared = Traits(
        min_scale=1.0, hysteresis=2, unsupported=FoundInfAdapter.unsupported
    )
    growth = dict.fromkeys(
        ["scale_is_never_infinite", "scale_recovers_after_overflows"],
        "a growth past 2^127 is inf, for ever",
    )
    check_scaler(
        megatrons,
        traits=declared,
        levels=[0, 5],
        examples=FEW,
        expected_failures=growth,
    )
    with pytest.raises(
        AssertionError, match=r"(?m)^overflow_backs_off_once: .*expected"
    ):
        check_scaler(
            megatrons,
            traits=Traits(unsupported=FoundInfAdapter.unsupported),
            levels=[0],
            examples=FEW,
        )


class AllOrNone(TORCH):
    """Every optimizer is skipped if one overflowed, as GANs want it."""

    def step(self, optimizer, *args, **kwargs):
        self.unscale_(optimizer)
        self._due = [*getattr(self, "_due", []), optimizer]

    def update(self, new_scale=None):
        found = sum(
            t
            for state in self._per_optimizer_states.values()
            for t in state["found_inf_per_device"].values()
        )
        for optimizer in self.__dict__.pop("_due", []):
            if not found:
                optimizer.step()
        super().update(new_scale)


def test_skip_policy_is_a_trait():
    check = CHECKS["optimizers_share_one_scale"]
    check(as_subject(AllOrNone, Traits(skips="all")), examples=FEW)
    with pytest.raises(
        AssertionError,
        match="optimizers_share_one_scale: found_inf=False, stepped=False",
    ):
        check(AllOrNone, examples=FEW)


class GivesUp(TORCH):
    """Raises where it would go below 2^-100, as DeepSpeed and fairseq do at their floors."""

    def update(self, new_scale=None):
        if self.get_scale() <= 2.0**-100:
            raise FloatingPointError("the scale is too small")
        super().update(new_scale)


def test_minimum_scale_error_is_a_trait():
    check = CHECKS["scale_is_never_subnormal"]
    check(
        as_subject(
            GivesUp, Traits(min_scale=2.0**-100, gives_up=(FloatingPointError,))
        ),
        examples=FEW,
    )
    with pytest.raises(
        AssertionError,
        match="scale_is_never_subnormal: raised FloatingPointError: the scale is too small",
    ):
        check(GivesUp, examples=FEW)


class Fixed:
    """A scaler that knows no factors but 2 and 1/2, as most that stand in a trainer of their own."""

    def __init__(self, rule, late=0):
        assert (rule.growth_factor, rule.backoff_factor) == (2.0, 0.5)
        self.scale, self.interval, self.clean = (
            rule.init_scale,
            rule.growth_interval + late,
            0,
        )

    def update(self, found_inf):
        self.clean = 0 if found_inf else self.clean + 1
        grows = self.clean == self.interval and self.scale < 2.0**126
        self.scale *= 0.5 if found_inf else 2.0 if grows else 1.0
        self.clean *= self.clean < self.interval


def fixed(name, late=0):
    def make(rule):
        machine = Fixed(rule, late)
        return FoundInfAdapter(lambda: machine.scale, machine.update)

    CHECKS[name](
        as_subject(make, Traits(max_scale=2.0**126, unsupported={"factors"})),
        examples=FEW,
    )


def test_fixed_factor_scaler_is_checked():
    fixed("overflow_backs_off_once")
    fixed("growth_waits_for_interval")
    with pytest.raises(AssertionError, match="growth_waits_for_interval: did not grow"):
        fixed("growth_waits_for_interval", late=1)
    with pytest.raises(
        AssertionError, match=r"scale_is_never_subnormal: the scale fell to 2\*\*-1"
    ):
        fixed("scale_is_never_subnormal")  # as many overflows as 16 binades take
    with pytest.raises(AssertionError, match="scale_recovers_after_overflows: "):
        fixed("scale_recovers_after_overflows")


def test_unknown_feature_raises():
    with pytest.raises(
        ValueError,
        match=r"unsupported='state_dicts': no such feature; did you mean 'state_dict'",
    ):
        Traits(unsupported={"state_dicts"})


# ------------------------------------------------------------------------------ what a failure says


def message(name, target=TORCH):
    with pytest.raises(AssertionError) as failure:
        CHECKS[name](target)
    return str(failure.value).splitlines()


def test_failure_shows_overflows_and_scales():
    said = message("scale_is_never_subnormal")
    assert said[0] == "scale_is_never_subnormal: the scale fell to 2**-128"
    assert "  history  inf x 8" in said
    assert (
        f"  scale    1.0 -> {2.0**-16!r} -> 2**-32 -> ... -> 2**-96 -> 2**-112 -> 2**-128"
        in said
    )
    assert said[-1] == "  issue    https://github.com/pytorch/pytorch/issues/157436"
    repeat, emit = (
        line.split()[2:] for line in said if line.startswith(("  repeat", "  emit"))
    )
    code, text = run(*repeat)
    assert (code, said[0] in text) == (1, True), text
    assert emit == [
        "emit-test",
        "scale_is_never_subnormal",
        "torch.amp.grad_scaler:GradScaler",
    ]


def test_a_named_subject_is_repeated_in_python():
    said = message("scale_is_never_subnormal", Subject(TORCH, name="a name"))
    (repeat,) = [line for line in said if line.startswith(("  repeat", "  emit"))]
    assert "in Python: check_scaler(" in repeat


@pytest.mark.parametrize(
    "name", ["state_dict_is_atomic", "missing_features_are_declared"]
)
def test_without_standalone_test_none_is_offered(name):
    commands = CHECKS[name].commands(as_subject(TORCH), Examples(FEW, 1))
    assert [label for label, _ in commands] == ["repeat"]


class NeverBacksOff(TORCH):
    def update(self, new_scale=None):
        before = self._scale.clone()
        super().update(new_scale)
        self._scale.copy_(torch.maximum(before, self._scale))


def test_overflow_sequence_is_minimal():
    assert "  history  inf" in message("overflow_backs_off_once", NeverBacksOff)
    assert "  history  inf" in message("skips_stay_within_budget", NeverBacksOff)


class Breaks(TORCH):
    def step(self, optimizer, *args, **kwargs):
        raise ZeroDivisionError("float division by zero")


def test_unexpected_exception_is_a_finding():
    with pytest.raises(
        AssertionError,
        match="skips_stay_within_budget: raised ZeroDivisionError: float division",
    ) as failure:
        CHECKS["skips_stay_within_budget"](Breaks)
    text = str(failure.value)
    assert (
        'in step: raise ZeroDivisionError("float division by zero")' in text
    )  # the user's line
    assert len(text.splitlines()) <= 20


class Asserts(TORCH):
    def step(self, optimizer, *args, **kwargs):
        assert optimizer is None, "mine"


def test_scaler_assertion_counts_as_raised():
    with pytest.raises(
        RaisedError, match="skips_stay_within_budget: raised AssertionError: mine"
    ):
        CHECKS["skips_stay_within_budget"](Asserts)


def test_failed_calls_are_shown():
    said = message("call_sequences_match_torch", DividesBeforeItRefuses)
    assert said[0].startswith("call_sequences_match_torch: unscale_ left the gradient")
    assert "  history  scale 0, clean 0, step 0, unscale_ 0" in said


def test_failing_schedule_is_shown():
    said = message("state_dict_is_atomic")
    (history,) = [line for line in said if line.startswith("  history")]
    assert "checkpoint up to read GradScaler._scale, main up to" in history


def test_results_are_deterministic():
    requested: list[Rule] = []

    def make(rule: Rule) -> NeverBacksOff:
        requested.append(rule)
        return NeverBacksOff("cpu", *constants(rule))

    first, second = (
        [*judge.run_checks(make, judge.chosen([0])[:4], examples=6)] for _ in range(2)
    )
    assert first == second
    assert requested[: len(requested) // 2] == requested[len(requested) // 2 :]
    assert len(set(requested)) > 6


def test_all_findings_are_in_one_error():
    with pytest.raises(AssertionError) as failure:
        check_scaler(TORCH, levels=[5], examples=FEW, strict=True)
    named = [
        line.partition(":")[0]
        for line in str(failure.value).splitlines()
        if line[:1].strip()
    ]
    assert named == [
        each.name for each in judge.chosen([5]) if each.name in known_failures.TORCH
    ]


# -------------------------------------------------------------------------------- expected failures


def test_expected_failures_become_strict_xfails():
    target = Subject(TORCH, Traits(unsupported={"pickle"}), "mine")
    decorator = parametrize_with_checks(
        [target],
        expected_failures=lambda subject: {"skips_stay_within_budget": subject.name},
    )
    cases = {case.id: case.marks for case in decorator.args[1]}
    (xfail,) = cases["mine-skips_stay_within_budget"]
    assert (xfail.name, xfail.kwargs["strict"], xfail.kwargs["reason"]) == (
        "xfail",
        True,
        "mine",
    )
    (skip,) = cases["mine-pickling_is_exact"]
    assert (skip.name, skip.kwargs["reason"]) == (
        "skip",
        "unsupported: pickle (declared)",
    )
    assert not cases["mine-state_dict_continues_run"]


def test_check_threads_runs_level_3_only(few_schedules):
    torn = "state_dict_is_atomic"
    names = [each.name for each in judge.chosen([3])]
    results = check_threads(TORCH)
    assert [each.check.name for each in results] == names
    assert {each.check.name for each in results if each.outcome == "xfailed"} == {torn}
    cases = parametrize_with_checks([TORCH], levels=[3]).args[1]
    assert [case.values[1].name for case in cases] == names
    assert [
        mark.name for case in cases for mark in case.marks if mark.name == "xfail"
    ] == ["xfail"]


# ------------------------------------------------------------------------------- wrong use, imports


@pytest.mark.parametrize("levels", [[-1], [6], [0.5], 0, 1])
def test_unknown_level_raises(levels):
    with pytest.raises((TypeError, ValueError), match=r"level.*: expected"):
        judge.chosen(levels)


def test_options_extend_subject_traits(framework):
    framework.Scaler = Subject(TORCH, Traits(unsupported={"pickle"}, delay=1), "mine")
    found = find("framework:Scaler", min_scale=1.0, unsupported=frozenset({"setters"}))
    assert found.traits == Traits(
        delay=1, min_scale=1.0, unsupported={"pickle", "setters"}
    )
    assert found.name == "framework:Scaler"
    options = "--trait min_scale=1.0 --trait delay=1 --unsupported pickle --unsupported setters"
    assert found.traits.as_options() == options.split()
    again = as_subject(framework.Scaler, Traits(skips="all"))
    assert (again.name, again.traits) == ("mine", Traits(skips="all"))


@pytest.mark.parametrize(
    "reset", ["clean", "backoff,clean", "clean,growth,backoff", None]
)
def test_options_declare_the_same_traits(reset):
    traits = Traits(
        hysteresis=2, hysteresis_reset=reset, max_scale=2.0**-140, static=True
    )
    words = traits.as_options()
    assert {*words[::2]} == {"--trait"}
    assert Traits(**declared_traits(words[1::2], ())) == traits


# -------------------------------------------------------------------------------- the set of checks


def test_checks_raise_without_asserts():
    asked = "from ampsim.testing.scaler_checks import CHECKS; CHECKS['skips_stay_within_budget'](lambda rule: None)"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-O", "-c", asked], capture_output=True, text=True, check=False
    )
    assert "checks use assert statements, which python -O removes" in done.stderr


# -------------------------------------------------------------------------------------------------------
# in pytest

PYTEST_FILE = """
import torch
from ampsim.testing import parametrize_with_checks
from tests.testing.loops import batches, sgd

@parametrize_with_checks([torch.amp.GradScaler], levels=[5], expected_failures={"scale_is_never_subnormal": "no floor"})
def test_scaler(scaler, check):
    check(scaler, examples=10)

@parametrize_with_checks([sgd], batches(), checks=["step_changes_parameters", "micro_batches_equal_one_batch"])
def test_loop(loop, check):
    check(loop)
"""


def test_pytest_reports_each_check(tmp_path):
    """A failed check fails its test, a known one is xfailed, one that does not apply is skipped."""
    seen = {}

    class Recorder:
        def pytest_runtest_logreport(self, report):
            outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
            if report.when == "call" or outcome != "passed":
                seen[report.nodeid.partition("[")[2].rstrip("]").rpartition("-")[2]] = (
                    outcome
                )

    (tmp_path / "test_theirs.py").write_text(PYTEST_FILE)
    options = [
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
        "--no-header",
    ]
    assert (
        pytest.main([*options, str(tmp_path)], plugins=[Recorder()])
        == pytest.ExitCode.OK
    )
    assert seen["scale_is_never_subnormal"] == "xfailed"
    assert seen["scale_recovers_after_overflows"] == "xfailed"  # as torch's scaler
    assert (seen["step_changes_parameters"], seen["micro_batches_equal_one_batch"]) == (
        "passed",
        "skipped",
    )
    assert "passed" in {seen[each.name] for each in judge.chosen([5])}


# ------------------------------------------------------------------------------------------- docs


def test_table_of_features_matches_checks():
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "scaler.md"
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([^|]*) \|$", guide.read_text(), re.M)
    skipped = {feature: {*re.findall(r"`(\w+)`", cell)} for feature, cell in rows}
    for feature in FEATURES:
        needing = {check.name for check in CHECKS.values() if feature in check.needs}
        assert skipped[feature] == needing
