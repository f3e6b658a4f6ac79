"""The faults of log_power are those that their names say, and the right scaler is the state
machine's.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampsim.core.machine import Rule
from ampsim.core.state import State
from experiments.corpus.follow import follow
from experiments.log_power import (
    Config,
    Scaler,
    arms,
    every_rows,
    exceeds_bound,
    overflow_rows,
)

THRESHOLDS = st.lists(st.floats(5.0, 30.0), min_size=2, max_size=200)


@given(thresholds=THRESHOLDS, interval=st.integers(1, 20))
def test_right_scaler_is_the_state_machine(
    thresholds: list[float], interval: int
) -> None:
    rule, start = Rule(growth_interval=interval), float(math.floor(thresholds[0]))
    state = State(2.0**start)
    for step, threshold in zip(
        Scaler().steps(thresholds, interval), thresholds, strict=True
    ):
        assert step.used == math.log2(state.scale)
        state = rule.update(state, step.used > threshold)
        assert step.after == math.log2(state.scale)


@given(thresholds=THRESHOLDS, interval=st.integers(1, 20), every=st.integers(1, 30))
def test_right_scaler_is_never_contradicted(
    thresholds: list[float], interval: int, every: int
) -> None:
    steps = list(Scaler().steps(thresholds, interval))
    rule = Rule(growth_interval=interval)
    for rows in (every_rows(steps, every), overflow_rows(steps, every)):
        assert not follow(rule, rows, counts_skips=True).breaks
    assert not exceeds_bound(rule, steps)


@pytest.mark.parametrize(
    "name", [name for name in arms(Config()) if name != "no fault"]
)
def test_fault_changes_the_scales(name: str) -> None:
    thresholds = [20.0] * 30 + [5.0] * 3 + [20.0] * 400
    faulty, right = (
        list(each.steps(thresholds, 10)) for each in (arms(Config())[name], Scaler())
    )
    assert faulty != right


def test_counts_alone_show_that_nothing_backs_off() -> None:
    rule = Rule(growth_interval=10)
    steps = list(Scaler(falls=0).steps([8.0] * 5 + [4.0] * 95, 10))
    assert sum(step.overflows for step in steps) == 95
    assert exceeds_bound(rule, steps)
