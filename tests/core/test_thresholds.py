"""Replay from event to event equals the fold, for every knob, with numba and without."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from ampsim import Rule, State, init, replay_thresholds, update
from ampsim.core.machine import Arithmetic
from ampsim.core.replay import engine
from ampsim.core.replay import thresholds as module
from ampsim.core.replay.sweep import sweep
from ampsim.core.replay.thresholds import ThresholdReplay, index_thresholds
from tests.core.helpers import rules
from tests.examples import examples

INF = math.inf


@pytest.fixture(scope="module", params=["python", "numba"], autouse=True)
def _engine(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "numba":
        pytest.importorskip("numba")
    chosen = engine.PYTHON if request.param == "python" else engine.compiled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "fastest", lambda: chosen)
        yield


def folded(
    rule: Rule, thresholds: Any, state: State
) -> tuple[list[int], list[tuple[int, float]], State]:
    """Skipped steps, scale changes and final state, by the machine's own update."""
    skipped, changes = [], []
    for step, threshold in enumerate(thresholds):
        found_inf, before = state.scale > float(threshold), repr(state.scale)
        state = update(rule, state, found_inf)
        if found_inf:
            skipped.append(step)
        if repr(state.scale) != before:
            changes.append((step, state.scale))
    return skipped, changes, state


def seen(done: ThresholdReplay) -> tuple[list[int], list[tuple[int, float]], State]:
    assert done.skipped.dtype == np.int64
    assert done.scale_changes.dtype == module.CHANGE
    return done.skipped.tolist(), done.scale_changes.tolist(), done.state


def assert_equals_the_fold(
    rule: Rule, index: module.ThresholdIndex, state: State
) -> ThresholdReplay:
    done = replay_thresholds(rule, index, method="events", state=state)
    assert repr(seen(done)) == repr(
        folded(rule, index.thresholds, state)
    )  # repr: NaN is NaN, 1.0 is no np.float64
    return done


@st.composite
def starts(draw: st.DrawFn, rule: Rule) -> State:
    """The first state, or one in the middle of a run, the streak past the interval and the queue
    half full too.
    """
    first = init(rule)
    if draw(st.booleans()):
        return first
    pending = draw(
        st.lists(
            st.sampled_from([first.scale, first.scale, 2 * first.scale]),
            max_size=rule.delay,
        )
    )
    streak = draw(st.integers(-1, 9))
    return State(
        first.scale,
        streak,
        draw(st.integers(0, 2)),
        tuple(map(rule.arithmetic.round, pending)),
    )


CEILING_OF = {  # the step's threshold, given the scale in force
    "equal": lambda scale: scale,
    "just below": lambda scale: math.nextafter(scale, 0.0),
    "float32 below": lambda scale: float(
        np.nextafter(np.float32(min(scale, 3e38)), np.float32(0))
    ),
    "just above": lambda scale: math.nextafter(scale, INF),
    "double": lambda scale: scale * 2,
    "half": lambda scale: scale / 2,
    "never": lambda scale: INF,
    "always": lambda scale: 0.0,
    "subnormal": lambda scale: 2.0**-149,
    "1": lambda scale: 1.0,
}


@st.composite
def traces(draw: st.DrawFn, rule: Rule, state: State) -> np.ndarray:
    """Thresholds at, just above and just below whatever scale is then in force, in stretches of one
    kind.
    """
    stretches = draw(
        st.lists(
            st.tuples(st.sampled_from([*CEILING_OF]), st.integers(1, 12)),
            min_size=1,
            max_size=10,
        )
    )
    dtype, thresholds = draw(st.sampled_from([np.float32, np.float64])), []
    for kind in itertools.chain.from_iterable(
        [kind] * many for kind, many in stretches
    ):
        threshold = CEILING_OF[kind](state.scale)
        with np.errstate(over="ignore", under="ignore"):
            thresholds.append(dtype(0.0 if math.isnan(threshold) else threshold))
        state = update(rule, state, state.scale > float(thresholds[-1]))
    return np.array(thresholds, dtype)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Rule, State, np.ndarray]:
    rule = draw(rules(dtypes=("float32", "float64")))
    state = draw(starts(rule))
    return rule, state, draw(traces(rule, state))


def ones(*thresholds: float) -> np.ndarray:
    return np.array(thresholds, np.float32)


FEW = settings(max_examples=examples(ms=8))
BLOCKS, ROOMS = st.sampled_from([1, 2, 4, 8, 64]), st.sampled_from([1, 2, 5, 4096])
START = State(1.0)


@settings(max_examples=examples(ms=5))
@given(case=cases(), block=BLOCKS, room=ROOMS)
@example(
    case=(Rule(1.0), START, ones(1.0, np.nextafter(np.float32(1), np.float32(0)))),
    block=64,
    room=4096,
)
@example(case=(Rule(1.0), START, ones(2, 2, 2, 0, 2, 2, 2, 0, 0)), block=4, room=1)
@example(
    case=(Rule(1.0, growth_interval=2**70), START, ones(INF, 0, INF)), block=4, room=1
)
@example(
    case=(Rule(3e38, growth_interval=2), State(3e38), ones(INF, INF, INF)),
    block=1,
    room=1,
)
@example(
    case=(Rule(0.7, arithmetic=Arithmetic(dtype="float64")), State(0.7), ones(0.7)),
    block=1,
    room=1,
)  # rounded down
def test_event_replay_equals_fold(
    case: tuple[Rule, State, np.ndarray], block: int, room: int
) -> None:
    rule, state, trace = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            module, "_ROOM", room
        )  # events a call of the loop: it is resumed at any event
        done = assert_equals_the_fold(rule, index_thresholds(trace, block=block), state)
    event(
        f"skips {min(3, len(done.skipped))}, changes {min(3, len(done.scale_changes))}"
    )
    assert repr(seen(done)) == repr(
        seen(replay_thresholds(rule, trace, method="fold", state=state))
    )
    assert len(done.scales()) == done.n == len(trace)


@FEW
@given(case=cases(), cut=st.floats(0, 1))
def test_replay_resumes_from_state(
    case: tuple[Rule, State, np.ndarray], cut: float
) -> None:
    rule, state, trace = case
    middle = 1 + int(cut * (len(trace) - 1))
    first = replay_thresholds(rule, trace[:middle], state=state)
    skipped, changes, last = seen(first)
    if middle < len(trace):
        more, later, last = seen(
            replay_thresholds(rule, trace[middle:], state=first.state)
        )
        skipped += [middle + step for step in more]
        changes += [(middle + step, scale) for step, scale in later]
    assert repr((skipped, changes, last)) == repr(
        seen(replay_thresholds(rule, trace, state=state))
    )


@FEW
@given(
    family=st.lists(rules(dtypes=("float32", "float64")), min_size=1, max_size=3),
    data=st.data(),
)
def test_sweep_equals_single_replays(family: list[Rule], data: st.DataObject) -> None:
    trace = data.draw(traces(family[0], init(family[0])))
    rows = sweep(iter(family), trace)
    singles = [replay_thresholds(rule, trace) for rule in family]
    expected = [
        (len(one.skipped), one.skip_rate, one.mean_log2_scale, one.state.scale)
        for one in singles
    ]
    assert repr(rows.tolist()) == repr(expected)


def long_walk() -> np.ndarray:
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(0, 0.02, 60_000)) + rng.normal(17, 0.3, 60_000)
    return np.exp2(walk).astype(np.float32)


def test_long_trace_replay_equals_fold() -> None:
    rule = Rule(
        growth_interval=50,
        growth_factor=2.0**0.25,
        backoff_factor=0.8,
        hysteresis=2,
        delay=3,
    )
    done = assert_equals_the_fold(rule, index_thresholds(long_walk()), init(rule))
    assert done.mean_log2_scale == pytest.approx(
        np.log2(done.scales()).mean(), rel=1e-12
    )
    assert done.skip_rate == len(done.skipped) / 60_000 > 1e-4
