"""An emitted test fails for what is wrong, and passes for what is right; that of a scaler needs no
ampsim.
"""

import math
import sys
from types import ModuleType

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from ampsim.testing import FoundInfAdapter, Subject, Traits  # noqa: E402
from ampsim.testing.emit.run_emitted import loop_test, require_failure  # noqa: E402
from ampsim.testing.emit.scaler import write  # noqa: E402
from ampsim.testing.emit.text import value  # noqa: E402
from ampsim.testing.loop.checks import CHECKS as LOOP_CHECKS  # noqa: E402
from ampsim.torch import GradScaler  # noqa: E402
from experiments.bugs.loops import BUGS  # noqa: E402
from tests.test_cli import run  # noqa: E402
from tests.testing import handwritten_scalers  # noqa: E402
from tests.testing.loops import RIGHT, batches  # noqa: E402

torch.set_num_threads(1)
TORCH = torch.amp.GradScaler


def outcome(source):
    """What the test in a file does."""
    names = {}
    exec(source, names)  # noqa: S102
    (test,) = [each for name, each in names.items() if name.startswith("test_")]
    try:
        test()
    except AssertionError:
        return "failed"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return "passed"


# ---------------------------------------------------------------------------------------------------------
# scalers


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        ("overflow_backs_off_once", handwritten_scalers.BacksOffTwice),
        ("nonfinite_gradients_are_found", handwritten_scalers.IgnoresNegativeInf),
        ("skipped_step_changes_nothing", handwritten_scalers.SkipAdvancesTheOptimizer),
        ("call_sequences_match_torch", handwritten_scalers.DividesBeforeItRefuses),
        ("pickling_is_exact", handwritten_scalers.LosesTheStreakWhenPickled),
        ("scale_is_never_subnormal", TORCH),
        ("no_nonfinite_step_below_scale_one", TORCH),
    ],
)
def test_scaler_test_fails_only_for_fault(check, wrong, framework):
    framework.Scaler = wrong
    source, ends = write(check, "framework:Scaler")
    got = outcome(source)
    assert got == "failed" or ends in got, source
    framework.Scaler = GradScaler if wrong is TORCH else handwritten_scalers.Stranger
    assert outcome(source) == "passed", source


def by_rule(base):
    def make(rule):
        return base(
            rule.init_scale,
            rule.growth_factor,
            rule.backoff_factor,
            rule.growth_interval,
        )

    return make


def other_defaults(base):
    def make(init_scale=4.0, growth_factor=3.0, backoff_factor=0.1, growth_interval=5):
        return base(init_scale, growth_factor, backoff_factor, growth_interval)

    return make


@pytest.mark.parametrize("shape", [by_rule, other_defaults])
@pytest.mark.parametrize(
    "declared", [{}, {"min_scale": 2.0**-100, "max_scale": 2.0**126}]
)
def test_maker_of_any_shape_is_called(shape, declared, framework):
    framework.Scaler = shape(handwritten_scalers.OverrideRestartsTheStreak)
    source, _ = write("new_scale_keeps_growth_tracker", "framework:Scaler", **declared)
    assert outcome(source) == "failed", source
    framework.Scaler = shape(handwritten_scalers.Stranger)
    assert outcome(source) == "passed", source


class Spins(TORCH):
    def update(self, new_scale=None):
        while True:
            pass


# The alarm may ring where Python swallows exceptions; the next one ends the check.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_endless_scaler_and_adapter_raise(framework, monkeypatch):
    monkeypatch.setattr("ampsim.testing.emit.scaler.time_limit", lambda _: 0.1)
    adapter = Subject(lambda rule: FoundInfAdapter(lambda: 1.0, lambda found_inf: None))
    for scaler, said in ((Spins, "did not end"), (adapter, "is a Subject")):
        framework.Scaler = scaler
        with pytest.raises(ValueError, match=said):
            write("skipped_step_changes_nothing", "framework:Scaler")


def test_subject_gives_class_and_traits(framework):
    framework.Scaler = Subject(TORCH, Traits(min_scale=2.0**-140), "a name")
    source, _ = write("scale_is_never_subnormal", "framework:Scaler")
    assert "from torch.amp.grad_scaler import GradScaler" in source
    assert str(2.0**-140) in source or "-140" in source
    assert outcome(source) == "failed"


def test_expected_scales_name_their_rule(framework):
    framework.Scaler = handwritten_scalers.BacksOffTwice
    declared = Traits(hysteresis=2, hysteresis_reset="clean").differences()
    source, _ = write("overflow_backs_off_once", "framework:Scaler", **declared)
    rule = "# Expected of a rule with hysteresis=2, hysteresis_reset={'clean'}:"
    assert f"{rule}\n    case.expected_scales" in source


def test_number_literals_round_trip():
    for each in (
        0.0,
        1.0,
        -1.0,
        0.7,
        2.0**-149,
        2.0**127,
        1e38,
        math.inf,
        -math.inf,
        (),
        (2.0,),
        {"a": (1,)},
        frozenset("abc"),
    ):
        assert eval(value(each), {"math": math}) == each  # noqa: S307
        assert eval(value([each] * 30), {"math": math}) == [each] * 30  # noqa: S307


def test_command_runs_test_in_subprocess():
    """The command shows no test that did not fail in a process that cannot import ampsim."""
    code, source = run("emit-test", "scale_is_never_subnormal", "torch.amp:GradScaler")
    assert code == 0
    assert outcome(source) == "failed"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "passed"),
        ("1 / 0", "ZeroDivisionError"),
        ("__import__('am' + 'psim')", "imports ampsim"),
    ],
)
def test_passing_test_is_not_emitted(body, said):
    with pytest.raises(ValueError, match=said):
        require_failure(f"def test_it():\n    {body}\n", "AssertionError", 60)


def test_emitted_adapter_has_used_methods_only(framework):
    framework.Scaler = TORCH
    source, _ = write("scale_is_never_subnormal", "framework:Scaler")
    assert "def run(" in source
    assert "def fallen_to(" not in source


# -----------------------------------------------------------------------------------------------------------
# loops


@pytest.fixture
def loops(monkeypatch):
    """A module `loops` of batches, and of a maker that a test exchanges."""
    module = ModuleType("loops")
    module.batches = batches
    monkeypatch.setitem(sys.modules, "loops", module)
    return module


@pytest.mark.parametrize(
    "name", ["relax_44_unscaled_twice", "lightning_18828_schedule_goes_on"]
)
def test_loop_test_fails_only_for_fault(name, loops):
    loops.make = BUGS[name].make
    source = loop_test(LOOP_CHECKS[BUGS[name].check], "loops:make")
    assert outcome(source) == "failed", source
    loops.make = RIGHT["averaged_and_scheduled"]
    assert outcome(source) == "passed", source


# -------------------------------------------------------------------------------------------------------
# wrong use


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["skips_stay_within_budget", "torch.amp:GradScaler"],
            "skips_stay_within_budget passed for torch.amp:GradScaler",
        ),
        (["skip_budge", "torch.amp:GradScaler"], "'skips_stay_within_budget'"),
        (
            ["state_dict_is_atomic", "torch.amp:GradScaler"],
            "state_dict_is_atomic needs ampsim",
        ),
        (["skips_stay_within_budget", "torch.amp:GradScale"], "'GradScaler'"),
        (["skips_stay_within_budget", "math:pi"], "has type float"),
        (["step_changes_parameters", "math:pow"], "'batches'"),
    ],
)
def test_command_errors_are_one_line(arguments, said):
    code, text = run("emit-test", *arguments)
    assert (code, said in text, text.count("\n")) == (2, True, 1), text
