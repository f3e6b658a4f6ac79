"""The machine's contract, sentence by sentence: construction, one update, delay, override, arithmetic."""

import dataclasses
import math
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import Rule, State, init, replay_ceilings, update
from ampsim.core.machine import Arithmetic, Quirk, join, override, round_to_float32
from tests.core.helpers import run, scales
from tests.examples import examples

DIVIDING = Arithmetic(backoff="divide")
RECIPROCAL = Arithmetic(round_factors=True, backoff="reciprocal")


# --------------------------------------------------------------------------------------------------- refusals

NAN, INF = math.nan, math.inf

POSITIVE = "expected a positive finite number; torch starts at 2.0**16"
HOLDABLE = "expected a number that format can hold; pass one between 2.0**-126 and 2.0**127"
GROWING = "expected a finite number >= 1; to never grow pass growth_factor=1.0"
SHRINKING = "expected a number in (0, 1]; to never back off pass backoff_factor=1.0"
STEPS = "expected at least 1; to never grow pass growth_factor=1.0"
FLOOR = "expected a finite number >= 0; for no floor pass None"
CEILING = "expected a positive number; for no ceiling pass None"
ORDER = "expected min_scale <= max_scale; swap them, or pass None for the bound that is not wanted"
REFILL = "expected a set of 'clean', 'growth', 'backoff'; Megatron's is frozenset({'growth'})"
APART = "leave arithmetic at its default to choose the two factors apart"
REAL = "expected a real number; pass a float such as 2.0"
NUMBER = "expected a real number; leave it out to take the default"
WHOLE = "expected a whole number; pass an int such as 2000"

VALUE_ERRORS = [  # the value, what was expected; the cure
    ({"init_scale": 0.0}, f"init_scale=0.0: {POSITIVE}"),
    ({"init_scale": -1.0}, f"init_scale=-1.0: {POSITIVE}"),
    ({"init_scale": INF}, f"init_scale=inf: {POSITIVE}"),
    ({"init_scale": NAN}, f"init_scale=nan: {POSITIVE}"),
    ({"init_scale": 1e39}, f"init_scale=1e+39 is inf in float32: {HOLDABLE}"),
    ({"init_scale": 1e-46}, f"init_scale=1e-46 is 0.0 in float32: {HOLDABLE}"),
    ({"growth_factor": 0.5}, f"growth_factor=0.5: {GROWING}"),
    ({"growth_factor": INF}, f"growth_factor=inf: {GROWING}"),
    ({"growth_factor": NAN}, f"growth_factor=nan: {GROWING}"),
    ({"backoff_factor": 0.0}, f"backoff_factor=0.0: {SHRINKING}"),
    ({"backoff_factor": 1.5}, f"backoff_factor=1.5: {SHRINKING}"),
    ({"backoff_factor": NAN}, f"backoff_factor=nan: {SHRINKING}"),
    ({"growth_interval": 0}, f"growth_interval=0: {STEPS}"),
    ({"growth_interval": -3}, f"growth_interval=-3: {STEPS}"),
    ({"hysteresis": 0}, "hysteresis=0: expected at least 1; to back off at every overflow pass hysteresis=1"),
    ({"delay": -1}, "delay=-1: expected at least 0; to use each scale at once pass delay=0"),
    ({"min_scale": -1.0}, f"min_scale=-1.0: {FLOOR}"),
    ({"min_scale": INF}, f"min_scale=inf: {FLOOR}"),
    ({"min_scale": NAN}, f"min_scale=nan: {FLOOR}"),
    ({"max_scale": 0.0}, f"max_scale=0.0: {CEILING}"),
    ({"max_scale": NAN}, f"max_scale=nan: {CEILING}"),
    ({"min_scale": 8.0, "max_scale": 4.0}, f"min_scale=8.0 > max_scale=4.0: {ORDER}"),
    ({"growth_test": ">"}, "growth_test='>': expected one of '==', '>='"),
    ({"hysteresis_refill": {"good"}}, f"hysteresis_refill={{'good'}}: {REFILL}"),
    ({"hysteresis_refill": "clean"}, f"hysteresis_refill='clean': {REFILL}"),
    (
        {"arithmetic": DIVIDING, "growth_factor": 4.0},
        f"backoff_factor=0.5 with a backoff that divides by growth_factor=4.0: expected 0.25; {APART}",
    ),
    (
        {"arithmetic": RECIPROCAL, "backoff_factor": 0.25},
        f"backoff_factor=0.25 with a backoff that divides by growth_factor=2.0: expected 0.5; {APART}",
    ),
]
TYPE_ERRORS = [
    ({"init_scale": True}, f"init_scale=True is a bool: {REAL}"),
    ({"init_scale": "65536"}, f"init_scale='65536' is a str: {REAL}"),
    ({"init_scale": None}, f"init_scale=None: {NUMBER}"),
    ({"growth_factor": True}, f"growth_factor=True is a bool: {REAL}"),
    ({"growth_factor": 2j}, f"growth_factor=2j is a complex: {REAL}"),
    ({"growth_factor": None}, f"growth_factor=None: {NUMBER}"),
    ({"backoff_factor": "0.5"}, f"backoff_factor='0.5' is a str: {REAL}"),
    ({"backoff_factor": None}, f"backoff_factor=None: {NUMBER}"),
    ({"min_scale": False}, f"min_scale=False is a bool: {REAL}"),
    ({"max_scale": "inf"}, f"max_scale='inf' is a str: {REAL}"),
    ({"growth_interval": 2000.0}, f"growth_interval=2000.0 is a float: {WHOLE}"),
    ({"growth_interval": True}, f"growth_interval=True is a bool: {WHOLE}"),
    ({"growth_interval": "2000"}, f"growth_interval='2000' is a str: {WHOLE}"),
    ({"hysteresis": 2.0}, f"hysteresis=2.0 is a float: {WHOLE}"),
    ({"delay": True}, f"delay=True is a bool: {WHOLE}"),
]
REFUSED = [(fields, ValueError, text) for fields, text in VALUE_ERRORS] + [
    (fields, TypeError, text) for fields, text in TYPE_ERRORS
]


@pytest.mark.parametrize(("fields", "error", "text"), REFUSED, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_refused_with_value_expectation_and_cure(fields, error, text) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}$") as caught:
        Rule(**fields)
    assert type(caught.value) is error


@pytest.mark.parametrize("fields", [case[0] for case in REFUSED], ids=str)
def test_unchecked_takes_what_is_refused(fields) -> None:
    rule = Rule.unchecked(**fields)
    for name, value in fields.items():
        assert getattr(rule, name) is value


def test_unchecked_fills_in_the_defaults_and_refuses_unknown_names() -> None:
    assert Rule.unchecked() == Rule()
    assert hash(Rule.unchecked(delay=1)) == hash(Rule(delay=1))
    assert Rule.unchecked().arithmetic is not None
    with pytest.raises(TypeError, match=r"unknown fields \['growth', 'shrink'\]: expected some of \['init_scale', "):
        Rule.unchecked(shrink=0.5, growth=2.0)


def test_a_permissive_rule_runs() -> None:
    # torch accepts growth_interval=0 and never grows
    assert scales(Rule.unchecked(init_scale=8.0, growth_interval=0), "0001") == [8.0, 8.0, 8.0, 4.0]


@pytest.mark.parametrize(
    "fields",
    [
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"min_scale": 0.0},
        {"max_scale": INF},
        {"min_scale": 4.0, "max_scale": 4.0, "init_scale": 4.0},
        {"init_scale": 2.0**127},
        {"init_scale": 2.0**-149},
        {"init_scale": 1e39, "arithmetic": Arithmetic(dtype="float64")},
        {"hysteresis_refill": frozenset()},
        {"arithmetic": DIVIDING, "growth_factor": 4.0, "backoff_factor": 0.25},
        {"init_scale": 65536, "growth_factor": 2, "backoff_factor": Fraction(1, 2)},
        {"init_scale": np.float32(1024), "growth_interval": np.int64(3)},
    ],
    ids=str,
)
def test_edge_values_are_taken_and_run(fields) -> None:
    rule = Rule(**fields)
    assert all(isinstance(state.scale, float) for state in run(rule, "0101" * 3))


def test_replace_checks_again() -> None:
    rule = Rule().replace(growth_interval=7)
    assert (rule.growth_interval, rule.init_scale) == (7, 65536.0)
    with pytest.raises(ValueError, match="growth_interval=0"):
        rule.replace(growth_interval=0)


def test_the_defaults_are_torchs() -> None:
    rule = Rule()
    assert (rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval) == (65536.0, 2.0, 0.5, 2000)
    assert (rule.min_scale, rule.max_scale, rule.hysteresis, rule.delay, rule.growth_test) == (None, None, 1, 0, "==")
    assert Rule(1024.0, 4.0, 0.25, 10) == Rule(
        init_scale=1024.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=10
    )
    with pytest.raises(TypeError):
        Rule(1.0, 2.0, 0.5, 10, 1.0)  # bounds and the rest by name only


@pytest.mark.parametrize("call", [lambda x: init(x), lambda x: update(x, None, False)], ids=["init", "update"])
def test_what_is_no_rule_is_refused(call) -> None:
    with pytest.raises(
        TypeError, match="'torch' is no rule: expected a Rule, or a policy with init, update and override"
    ):
        call("torch")


# --------------------------------------------------------------------------------- rules and states as values


def test_a_state_is_frozen_hashable_and_small() -> None:
    state = init(Rule())
    assert state == State(65536.0, 0, 0, (), ())
    assert {state: "in a dict"}[State(65536.0)] == "in a dict"
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.scale = 1.0
    assert not hasattr(state, "__dict__")


def test_a_rule_is_frozen_hashable_and_survives_pickle() -> None:
    rule = Rule(growth_interval=7, hysteresis=2, arithmetic=DIVIDING)
    assert pickle.loads(pickle.dumps(rule)) == rule  # noqa: S301 - our own bytes
    assert {rule: 1}[dataclasses.replace(rule)] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.growth_interval = 8


def test_recall_and_remember() -> None:
    state = State(1.0).remember(b=2, a=1)
    assert state.memory == (("a", 1), ("b", 2))  # sorted, so that equal memories are equal states
    assert (state.recall("b"), state.recall("c"), state.recall("c", 7)) == (2, 0, 7)
    assert state.remember(b=3).memory == (("a", 1), ("b", 3))
    assert State(1.0).remember(a=1).remember(b=2) == state


# ------------------------------------------------------------------------------------------------- one update


def test_growth_waits_for_the_interval_and_restarts_the_count() -> None:
    rule = Rule(1024.0, growth_interval=3)
    assert [(s.scale, s.growth_tracker) for s in run(rule, "0000000")] == [
        (1024, 1), (1024, 2), (2048, 0), (2048, 1), (2048, 2), (4096, 0), (4096, 1)
    ]  # fmt: skip


def test_an_overflow_backs_off_and_breaks_the_streak() -> None:
    rule = Rule(1024.0, growth_interval=3)
    assert [(s.scale, s.growth_tracker) for s in run(rule, "0010001")] == [
        (1024, 1), (1024, 2), (512, 0), (512, 1), (512, 2), (1024, 0), (512, 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "found_inf",
    [True, 1, -1, 2, NAN, INF, 1e-45, np.float32("nan"), np.float64(1.0), np.bool_(1), np.array([1.0]), np.array(NAN)],
    ids=repr,
)
def test_whatever_is_true_is_an_overflow(found_inf) -> None:
    assert update(Rule(8.0), State(8.0, 5), found_inf) == State(4.0, 0)


@pytest.mark.parametrize("found_inf", [False, 0, 0.0, -0.0, np.bool_(0), np.float32(0), np.array([0.0])], ids=repr)
def test_whatever_is_false_is_a_clean_step(found_inf) -> None:
    assert update(Rule(8.0), State(8.0, 5), found_inf) == State(8.0, 6)


def test_quirks_see_a_plain_bool() -> None:
    class Spy(Quirk):
        def update(self, advance, rule, state, found_inf):
            assert type(found_inf) is bool
            return advance(rule, state, found_inf)

    update(Rule(quirks=(Spy(),)), init(Rule()), np.float32("nan"))


def test_quirks_wrap_the_machine_outermost_last() -> None:
    order = []

    @dataclasses.dataclass(frozen=True)
    class Named(Quirk):
        name: str

        def update(self, advance, rule, state, found_inf):
            order.append(self.name)
            return advance(rule, state, found_inf)

    rule = Rule(quirks=(Named("inner"), Named("outer")))
    update(rule, init(rule), False)
    assert order == ["outer", "inner"]


def test_a_quirk_that_overrides_nothing_changes_nothing() -> None:
    plain, wrapped = Rule(8.0, growth_interval=2), Rule(8.0, growth_interval=2, quirks=(Quirk(), Quirk()))
    assert run(plain, "0010001") == run(wrapped, "0010001")


@pytest.mark.parametrize(("test", "grows"), [("==", False), (">=", True)])
def test_growth_tests_differ_past_the_interval(test, grows) -> None:
    # Five clean steps, then an interval of 3: torch never grows again.
    rule = Rule(1024.0, growth_interval=3, growth_test=test)
    after = update(rule, State(1024.0, 5), False)
    assert after == (State(2048.0, 0) if grows else State(1024.0, 6))


def test_bounds_are_held_in_the_scales_format() -> None:
    rule = Rule(8.0, growth_interval=1, min_scale=0.1, max_scale=1000 / 3)
    assert update(rule, State(0.125), True).scale == float(np.float32(0.1)) != 0.1
    assert update(rule, State(256.0), False).scale == float(np.float32(1000 / 3))


def test_subnormal_is_what_the_format_of_the_scale_says() -> None:
    double = Rule(2.0**-126, arithmetic=Arithmetic(dtype="float64", flush_subnormals=True))
    assert scales(double, "1") == [2.0**-127]
    assert scales(double.replace(init_scale=2.0**-1021), "11") == [2.0**-1022, 0.0]
    for first in (2.0**-126, 2.0**-1021):
        done = replay_ceilings(double.replace(init_scale=first), [0.0, 0.0], method="events")
        assert done.scales().tolist() == scales(double.replace(init_scale=first), "11")


# -------------------------------------------------------------------------------------------- delay, override


@settings(max_examples=examples(ms=3))
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30), st.integers(0, 3))
def test_mixed_updates_follow_a_plain_queue(steps, delay) -> None:
    """A choice per update, as RoundPipe's `is_async` is, against a list from which the oldest is taken."""
    rule = Rule(1024.0, growth_interval=2, delay=delay)
    state, plain, queue = init(rule), init(rule.replace(delay=0)), [1024.0]
    for found_inf, synchronous in steps:
        state = update(rule, state, found_inf, synchronous=synchronous)
        plain = update(rule.replace(delay=0), plain, found_inf)
        queue.append(plain.scale)
        while len(queue) > (1 if synchronous else delay + 1):
            queue.pop(0)
        assert (state.scale, *state.pending) == tuple(queue)
        assert (state.newest, state.growth_tracker) == (plain.scale, plain.growth_tracker)


def test_one_overflow_is_paid_twice_when_late() -> None:
    # Overflow iff S > 1000, from 65536: torch skips 7 and ends at 512, RoundPipe and MXNet 8 and 256.
    for delay, skips, final in [(0, 7, 512.0), (1, 8, 256.0)]:
        rule, seen = Rule(delay=delay), 0
        state = init(rule)
        for _ in range(40):
            overflow = state.scale > 1000
            seen += overflow
            state = update(rule, state, overflow)
        assert (seen, state.scale) == (skips, final)


def test_override_sets_the_scale_and_keeps_the_trackers() -> None:
    rule = Rule(1024.0, growth_interval=3, hysteresis=3)
    state = run(rule, "100")[-1]
    assert override(rule, state, 8) == State(8.0, 2, 1)
    assert update(rule, override(rule, state, 8.0), False) == State(16.0, 0, 0)  # doubled on the very next step
    assert override(rule, state, 0.1).scale == float(np.float32(0.1))


def test_override_waits_its_turn_under_a_delay() -> None:
    rule = Rule(65536.0, delay=1)
    state = override(rule, init(rule), 8.0)
    assert (state.scale, state.newest) == (65536.0, 8.0)
    assert update(rule, state, True) == State(8.0, 0, 0, (4.0,))  # computed from 8, not from 65536
    assert override(rule, init(rule), 8.0, synchronous=True) == State(8.0)


# ------------------------------------------------------------------------------------------------- arithmetic

doubles = st.floats(allow_nan=False)


@given(doubles)
@example(1e300)
@example(-1e300)
@example(2.0**-150)
@example(2.0**-150 * (1 + 2**-52))
@example((2 - 2.0**-24) * 2.0**127)  # the tie between the largest float32 and inf
@example(float(np.nextafter((2 - 2.0**-24) * 2.0**127, 0)))
def test_round_to_float32_is_numpys(x) -> None:
    with np.errstate(over="ignore", under="ignore"):
        expected = np.float64(x).astype(np.float32)
    assert np.float32(round_to_float32(x)).view(np.int32) == expected.view(np.int32)
    assert math.isnan(round_to_float32(math.nan))


def float32_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Random bit patterns, half of them near the bottom, all positive and finite."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 0x7F800000, n, dtype=np.uint32)
    x[: n // 2] = rng.integers(1, 0x03000000, n // 2, dtype=np.uint32)
    y = rng.integers(1, 0x7F800000, n, dtype=np.uint32)
    y[: n // 2] = rng.integers(0x3E000000, 0x42000000, n // 2, dtype=np.uint32)
    return x.view(np.float32), y.view(np.float32)


@pytest.mark.parametrize("operation", [np.multiply, np.divide])
def test_double_arithmetic_rounded_once_is_float32_arithmetic(operation) -> None:
    """What lets one double path serve every float32 scaler. Not decided by z3 within 60 s: sampled."""
    x, y = float32_pairs(1_000_000)
    with np.errstate(all="ignore"):
        direct = operation(x, y)
        detour = operation(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
        assert np.count_nonzero((direct != 0) & (direct < 2.0**-126)) > 10_000  # subnormals are among them
    assert np.array_equal(direct, detour)


factors = st.one_of(st.floats(1.0, 1024.0), st.sampled_from([1.0, 2.0, 1.1]))
positive = st.floats(2.0**-149, 2.0**127, width=32)


@given(positive, factors, st.floats(0.0, 1.0, exclude_min=True), st.lists(st.booleans(), max_size=60))
@example(2.0**-149, 2.0, 0.5, [True] * 3)
@example(2.0**127, 2.0, 0.5, [False] * 3)
@example(1.5 * 2.0**127, 1.0 + 2.0**-52, 1.0 - 2.0**-53, [False, True])
def test_a_scale_stays_finite_and_moves_the_right_way(start, growth, backoff, history) -> None:
    """Factors of full double precision, where z3 took those of float32."""
    rule = Rule(start, growth, backoff, 1)
    before = init(rule)
    for found_inf in history:
        after = update(rule, before, found_inf)
        assert math.isfinite(after.scale)
        assert after.scale >= 0
        assert after.scale == float(np.float32(after.scale))
        assert after.scale <= before.scale if found_inf else after.scale >= before.scale
        before = after


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"init_scale": 10**400}, ValueError, "init_scale is beyond every float"),
        ({"min_scale": 1e300}, ValueError, r"min_scale=1e\+300: expected a finite number"),  # inf in float32
        ({"max_scale": 1e-60}, ValueError, "max_scale=1e-60: expected a positive number"),  # 0 in float32
        ({"hysteresis_refill": 5}, ValueError, "hysteresis_refill=5: expected a set of"),
        ({"hysteresis_refill": [["clean"]]}, ValueError, "expected a set of"),
        ({"arithmetic": None}, TypeError, "arithmetic=None: expected an ampsim.core.machine.Arithmetic"),
        ({"quirks": [1]}, TypeError, "expected a tuple of ampsim.core.quirks"),
    ],
)
def test_no_raw_error_reaches_the_user(fields: dict[str, object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Rule(**fields)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype='float16': expected one of 'float32', 'float64'"):
        Arithmetic(dtype="float16")


def test_a_rule_is_hashable_whatever_collections_it_was_given() -> None:
    assert hash(Rule(hysteresis_refill={"clean"}, quirks=[])) == hash(Rule(hysteresis_refill=frozenset({"clean"})))


# ------------------------------------------------------------------------------------------------------- the join

PARTS = st.recursive(st.sampled_from([False, True, 0.0, 1.0, NAN]), lambda part: st.lists(part, max_size=4))


def joined(part):
    """Join what is nested in any way: ranks of micro-batches of optimizers."""
    return join(map(joined, part)) if isinstance(part, list) else part


def leaves(part):
    return [leaf for each in part for leaf in leaves(each)] if isinstance(part, list) else [part]


@settings(max_examples=examples(ms=2))
@given(st.lists(st.lists(PARTS, max_size=4), max_size=12), st.randoms(use_true_random=False))
@example([[[True], [True]]], None)  # two overflows are one
def test_the_machine_commutes_with_splitting_found_inf(history, random):
    rule = Rule(init_scale=64.0, growth_interval=2, hysteresis=2)
    whole = split = init(rule)
    for parts in history:
        seen = leaves(parts)
        whole = update(rule, whole, True in [bool(leaf) for leaf in seen])
        if random is not None:  # in any order, and more than once
            parts = [*parts, random.choice(parts)] if parts else parts
            random.shuffle(parts)
        split = update(rule, split, joined(parts))
        assert split == whole
