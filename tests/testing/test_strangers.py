"""The kit is fair: a right scaler passes, whatever its words, its constructor, its arithmetic or its framework."""

import math
import os
import subprocess
import sys
import threading
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.core.machine import Rule  # noqa: E402
from ampsim.testing import FromFlag, Subject, Traits, check_scaler, known, parametrize_with_checks  # noqa: E402
from ampsim.testing.kit import judge  # noqa: E402
from ampsim.testing.law import BrokenError, RaisedError  # noqa: E402
from tests.testing.strangers import Stranger  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("few_schedules")
FEW = 10
QUEUE = "gradients_keep_their_scale_behind_a_queue"
CHECKS = {check.name: check for check in judge.chosen()}


def findings(target, examples=FEW):
    """The names of the checks that fail."""
    return {each.check.name for each in judge.judge(target, judge.chosen(), examples=examples) if each.is_finding}


def test_a_right_scaler_in_its_own_words_passes():
    check_scaler(Stranger, examples=FEW)


def test_a_drop_in_is_held_to_torchs_words():
    with pytest.raises(BrokenError, match=r"raised MisuseError\('once is enough'\), expected RuntimeError\('unscale_"):
        CHECKS["unscaling_twice_is_refused"](Subject(Stranger, Traits(drop_in=True)))


# ------------------------------------------------------------------------------------------- how it is constructed


class Starred(Stranger):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Keywords(torch.amp.GradScaler):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)


class Positional(torch.amp.GradScaler):
    def __init__(self, *args):
        super().__init__(*args)


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


class Mixin:
    pass


class Mixed(Mixin, torch.amp.GradScaler):
    def __init__(self, device="cpu", **kwargs):
        super().__init__(device, **kwargs)


@pytest.mark.parametrize(
    "target",
    [
        Starred,
        Keywords,
        Positional,
        Wraps,
        Holds,
        Mixed,
        partial(torch.amp.GradScaler, "cpu"),
        Subject(Starred, Traits()),
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_a_constructor_is_called_with_torchs_arguments(target):
    subject = judge.as_subject(target)
    scaler = subject.make(Rule(init_scale=8.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7))
    got = scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()
    assert got == (8.0, 3.0, 0.25, 7)
    assert subject.make(Rule(init_scale=8.0), enabled=False).get_scale() == 1.0
    assert "enabled" not in subject.lacking


def test_a_class_that_takes_a_rule_is_given_one():
    class Ruled:
        def __init__(self, rule, **options):
            self.rule = rule

    assert Subject(Ruled).make(Rule(init_scale=8.0)).rule == Rule(init_scale=8.0)
    assert "enabled" in Subject(Ruled).lacking


def test_a_constructor_that_hides_where_the_constants_go_is_refused_and_not_guessed():
    class Hides(Holds):
        def __init__(self, kind="cpu", **kwargs):
            self.inner = torch.amp.GradScaler(kind, **kwargs)

    class OfARule(Holds):
        def __init__(self, rule, **kwargs):
            self.inner = torch.amp.GradScaler("cpu", rule.init_scale, **kwargs)

    with pytest.raises(TypeError, match="Hides does not say where init_scale goes"):
        judge.as_subject(Hides)
    assert judge.as_subject(OfARule).make(Rule(init_scale=8.0)).get_scale() == 8.0


# ------------------------------------------------------------------------------------------------ what it declares


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


def test_a_scale_kept_in_double_is_a_declaration():
    check_scaler(KeepsDouble, traits=Traits(scale_dtype="float64"), examples=FEW)
    with pytest.raises(BrokenError, match="scale_is_exact_float32"):
        CHECKS["scale_is_exact_float32"](Subject(KeepsDouble, Traits(drop_in=True)))


class ClampsAtTheTop(Stranger):
    """As flax's: a growth that would leave float32 ends at its largest number."""

    def raised(self, scale):
        return min(super().raised(scale) if scale * self.up < 2.0**127 else math.inf, 3.4028234663852886e38)


def test_where_growth_ends_is_the_scalers_own_affair():
    check_scaler(ClampsAtTheTop, examples=FEW)


def from_flag(rule):
    inner = Stranger(rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval)
    return FromFlag(inner.get_scale, inner.advance)


def test_what_an_adapter_lacks_is_read_from_it():
    results = check_scaler(from_flag, examples=FEW)
    assert {result.outcome for result in results} == {"passed", "not applicable"}
    declared = {result.text.removeprefix("without ") for result in results if result.outcome == "not applicable"}
    assert {"setters", "state_dict", "enabled"} < declared


def test_a_kernel_that_no_scale_is_handed_to_and_a_queue_without_tickets_are_nobodys_fault():
    queue, strided = judge.judge(Stranger, judge.chosen(names=[QUEUE, "fused_steps_follow_strides"]))
    assert (queue.outcome, queue.text) == ("not applicable", "without tickets")
    assert strided.outcome == "passed"
    (strided,) = judge.judge(torch.amp.GradScaler, judge.chosen(names=["fused_steps_follow_strides"]))
    assert strided.outcome == "failed"


# ----------------------------------------------------------------------------------------------------- flax and JAX


FLAX = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale
from ampsim.testing import FromFlag
from ampsim.testing.kit import judge
import ampsim.testing.loop.judge, ampsim.testing.loop.backends.jax  # and to judge a loop of JAX

def flax(rule):
    constants = (rule.growth_factor, rule.backoff_factor, rule.growth_interval)
    held = [DynamicScale(*constants, scale=jnp.float32(rule.init_scale), minimum_scale=None)]

    def update(found_inf):
        seen = held[0].value_and_grad(lambda x: x * (jnp.inf if found_inf else 1.0))(jnp.float32(1.0))
        held[0] = seen.dynamic_scale

    return FromFlag(lambda: float(held[0].scale), update)

for result in judge.judge(flax, judge.chosen(), examples=4):
    print(result.check.name, result.outcome, sep=': ', flush=True)
"""


# Its streak is compared before it is counted, so a growth comes one step late; and without a floor it ends at 0.
FLAX_FINDINGS = {
    "growth_waits_for_the_interval",
    "scale_is_exact_float32",
    "any_optimizer_overflow_backs_off",
    "scale_stays_normal",
    "scale_comes_back",
}


@pytest.mark.peer("flax", "jax")
def test_flax_is_judged_without_torch():
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", FLAX], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    outcomes = dict(line.split(": ") for line in done.stdout.splitlines())
    assert {name for name, outcome in outcomes.items() if outcome == "failed"} == FLAX_FINDINGS
    assert sum(outcome == "passed" for outcome in outcomes.values()) > 10


# ----------------------------------------------------------------------------------- a failure is of the kind expected


class RaisesInStateDict(Stranger):
    def load_state_dict(self, saved):
        raise ZeroDivisionError("of another kind")


def test_an_expected_failure_is_expected_by_its_kind():
    check = CHECKS["a_state_dict_continues_the_run"]
    with pytest.raises(RaisedError):
        check(RaisesInStateDict, examples=FEW)

    def outcome(reason):
        (result,) = judge.judge(RaisesInStateDict, [check], examples=FEW, expected={check.name: reason})
        return result.outcome

    assert outcome("loses the streak") == "failed"
    assert outcome("raised ZeroDivisionError: not yet") == "expected failure"


def test_an_expected_failure_that_passes_is_a_finding_whatever_its_reason():
    (result,) = judge.judge(Stranger, [CHECKS["skip_budget"]], examples=FEW, expected={"skip_budget": ""})
    assert result.outcome == "unexpected pass"


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


def test_a_torn_state_dict_does_not_excuse_a_deadlock():
    check = CHECKS["a_state_dict_is_never_torn"]
    (result,) = judge.judge(OppositeLocks, [check], expected=known.TORCH)
    assert result.outcome == "failed"
    assert result.text.startswith(f"{check.name}: raised DeadlockError")
    (mark,) = (
        parametrize_with_checks([OppositeLocks], expected_failures=known.TORCH)
        .args[1][[each.name for each in judge.chosen()].index(check.name)]
        .marks
    )
    with pytest.raises(AssertionError) as failure:
        check(OppositeLocks)
    assert not isinstance(failure.value, mark.kwargs["raises"])
