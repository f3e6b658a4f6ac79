"""The checks hold for the machine and for torch's recorded runs, and each names the mutant that
breaks it.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import Rule, State, init, update
from ampsim.core.machine import Arithmetic, round_to_float32
from ampsim.core.properties import (
    HISTORY_PROPERTIES,
    UPDATE_PROPERTIES,
    History,
    updates,
)
from ampsim.core.recorded_runs import read
from tests.core.helpers import rules
from tests.core.helpers import scales as scales_of
from tests.examples import examples

TRACES = Path(__file__).parent.parent / "traces"

# Runs of equal outcomes: uniform flags hardly ever grow or collapse.
histories = st.lists(
    st.one_of(
        st.integers(1, 12).map(lambda n: [False] * n),
        st.integers(1, 6).map(lambda n: [True] * n),
        st.lists(st.booleans(), max_size=4),
    ),
    max_size=12,
).map(lambda runs: [flag for run in runs for flag in run])


def broken(history: History) -> dict[str, str]:
    """Return the properties that a run violates."""
    violations: dict[str, str] = {}
    for t, each in enumerate(updates(history)):
        for check in UPDATE_PROPERTIES:
            if check.__name__ not in violations and (message := check(each)):
                violations[check.__name__] = f"update {t}: {message}"
    for whole in HISTORY_PROPERTIES:
        if message := whole(history):
            violations[whole.__name__] = message
    return violations


def torchs(rule: Rule) -> Rule:
    """The same rule, of which the checks speak: torch's arithmetic, no delay, a start within bounds
    of float32.
    """
    low, high = map(
        round_to_float32, (rule.min_scale or 0.0, rule.max_scale or math.inf)
    )
    start = min(max(rule.init_scale, low), high)
    plain = {
        "delay": 0,
        "growth_test": "==",
        "hysteresis_reset": {"growth"},
        "arithmetic": Arithmetic(),
    }
    return rule.replace(init_scale=start, min_scale=low, max_scale=high, **plain)


def observe(
    rule: Rule, flags: list[bool], machine: Callable[[Rule, State, bool], State]
) -> dict[str, str]:
    run = [init(rule)]
    for flag in flags:
        run.append(machine(rule, run[-1], flag))
    history = History(rule, flags, [s.scale for s in run])
    return broken(history)


@settings(max_examples=examples(ms=5))
@given(rules().map(torchs), histories)
@example(Rule(init_scale=2.0**127, growth_interval=1), [False])
@example(Rule(2.0**-149, growth_factor=1.1, growth_interval=1, min_scale=0.0), [False])
@example(Rule(1.5 * 2.0**127, 1.0 + 2.0**-52, 1.0 - 2.0**-53, 1), [False, True])
@example(
    Rule(init_scale=3.0, min_scale=2.0, growth_factor=1.5, growth_interval=1),
    [True, True, False],
)
def test_state_machine_passes_checks(rule: Rule, flags: list[bool]) -> None:
    assert observe(rule, flags, update) == {}


def test_recorded_torch_runs_pass_checks() -> None:
    seen = 0
    for trace in read(TRACES / "recorded.jsonl.gz"):
        if trace.system in ("torch.amp.GradScaler", "composer.ClosureGradScaler"):
            start = init(trace.rule()).scale
            seen += 1
            assert (
                broken(History(trace.rule(), trace.found_inf, (start, *trace.scale)))
                == {}
            ), trace
    assert seen > 10


def mutant(
    change: Callable[[Rule, State, bool, State], State],
) -> Callable[[Rule, State, bool], State]:
    return lambda rule, state, flag: change(
        rule, state, flag, update(rule, state, flag)
    )


def grows_one_late(rule: Rule, state: State, found_inf: bool) -> State:
    return update(
        rule.replace(growth_interval=rule.growth_interval + 1), state, found_inf
    )


def grows_one_early(rule: Rule, state: State, found_inf: bool) -> State:
    return update(
        rule.replace(growth_interval=rule.growth_interval - 1), state, found_inf
    )


def keeps_the_streak(rule: Rule, before: State, flag: bool, after: State) -> State:
    return (
        dataclasses.replace(after, growth_tracker=before.growth_tracker)
        if flag
        else after
    )


def backs_off_twice(rule: Rule, before: State, flag: bool, after: State) -> State:
    return dataclasses.replace(after, scale=after.scale * 0.5) if flag else after


def backs_off_a_little_more(
    rule: Rule, before: State, flag: bool, after: State
) -> State:
    return (
        dataclasses.replace(after, scale=after.scale * (1 - 2.0**-16))
        if flag
        else after
    )


def never_backs_off(rule: Rule, before: State, flag: bool, after: State) -> State:
    return dataclasses.replace(after, scale=before.scale) if flag else after


def grows_on_overflow(rule: Rule, before: State, flag: bool, after: State) -> State:
    return dataclasses.replace(after, scale=before.scale * 2) if flag else after


def decays_when_clean(rule: Rule, before: State, flag: bool, after: State) -> State:
    return after if flag else dataclasses.replace(after, scale=after.scale * 0.99)


def grows_by_the_square(rule: Rule, before: State, flag: bool, after: State) -> State:
    return (
        dataclasses.replace(after, scale=after.scale * 2)
        if after.scale > before.scale
        else after
    )


def reaches_inf(rule: Rule, before: State, flag: bool, after: State) -> State:
    return (
        dataclasses.replace(after, scale=math.inf)
        if before.scale >= 2.0**126
        else after
    )


def ignores_the_bounds(rule: Rule, state: State, found_inf: bool) -> State:
    return update(rule.replace(min_scale=None, max_scale=None), state, found_inf)


@pytest.mark.parametrize(
    ("machine", "rule", "flags", "check"),
    [
        (
            grows_one_late,
            Rule(growth_interval=2),
            [0, 0, 0],
            "growth_waits_for_interval",
        ),
        (grows_one_early, Rule(growth_interval=3), [0, 0], "growth_waits_for_interval"),
        (
            mutant(keeps_the_streak),
            Rule(growth_interval=3),
            [0, 1, 0, 0],
            "growth_waits_for_interval",
        ),
        (mutant(backs_off_twice), Rule(), [1], "overflow_backs_off_once"),
        (mutant(backs_off_a_little_more), Rule(), [1], "overflow_backs_off_once"),
        (mutant(never_backs_off), Rule(), [1] * 3, "overflow_backs_off_once"),
        (mutant(never_backs_off), Rule(), [1] * 3, "skips_stay_within_budget"),
        (mutant(grows_on_overflow), Rule(hysteresis=2), [1], "overflow_backs_off_once"),
        (mutant(decays_when_clean), Rule(), [0], "finite_step_never_lowers_scale"),
        (
            mutant(grows_by_the_square),
            Rule(growth_interval=1),
            [0],
            "growth_multiplies_by_factor",
        ),
        (
            mutant(reaches_inf),
            Rule(init_scale=2.0**127),
            [0],
            "scale_is_never_infinite",
        ),
        (
            ignores_the_bounds,
            Rule(init_scale=2.0, min_scale=2.0),
            [1],
            "scale_stays_within_bounds",
        ),
        (
            ignores_the_bounds,
            Rule(2.0, growth_interval=1, max_scale=2.0),
            [0],
            "scale_stays_within_bounds",
        ),
    ],
)
def test_each_check_detects_its_mutant(
    machine: Callable[[Rule, State, bool], State],
    rule: Rule,
    flags: list[int],
    check: str,
) -> None:
    assert check in observe(rule, [bool(flag) for flag in flags], machine)


def test_first_violation_is_reported() -> None:
    seen = observe(Rule(), [False, True, True], mutant(never_backs_off))[
        "overflow_backs_off_once"
    ]
    assert seen.startswith("update 1: ")


def test_skip_budget_is_tight() -> None:
    """Grow, overflow, grow, overflow: the bound of T1 is met with equality."""
    rule, cycle = Rule(growth_interval=4), [False] * 4 + [True]
    history = History(rule, cycle * 10, [rule.init_scale, *scales_of(rule, cycle * 10)])
    (check,) = [
        check
        for check in HISTORY_PROPERTIES
        if check.__name__ == "skips_stay_within_budget"
    ]
    assert check(history) is None
    one_more = History(
        rule, [*cycle * 10, True], [*history.scale, history.scale[-1]]
    )  # a skip that cost nothing
    assert "11 skips in 51 updates" in check(one_more)
