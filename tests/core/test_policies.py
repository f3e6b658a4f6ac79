"""Each policy does what its docstring says, stays in its bounds, and costs what theory says it
costs.
"""

import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.core import pipeline
from ampsim.core.machine import Rule, init, override, update
from ampsim.core.policies import (
    Deduplicated,
    Headroom,
    LogMax,
    Observation,
    Policy,
    Probe,
    flatten,
    unflatten,
)
from ampsim.core.replay.fold import replay, states

INF, NAN = math.inf, math.nan
few = settings(
    max_examples=max(10, settings().max_examples // 5)
)  # an example is up to 200 updates
DELAYS = st.sampled_from([0, 1, 2, 4])


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """One of each, small enough to reach its bounds within a short history."""
    delay, low, high = (
        draw(DELAYS),
        draw(st.integers(-126, 0)),
        draw(st.integers(15, 126)),
    )
    common = {
        "delay": delay,
        "min_scale": 2.0**low,
        "max_scale": 2.0**high,
        "init_scale": 2.0 ** draw(st.integers(0, 15)),
    }
    factors = {
        "growth_factor": draw(st.sampled_from([2.0, 1.7, 1.0, 1e6])),
        "backoff_factor": draw(st.sampled_from([0.5, 0.3, 1.0, 1e-6])),
        "growth_interval": draw(st.integers(1, 4)),
    }
    made: list[Policy] = [
        Deduplicated(**common, **factors),
        Probe(**common, **factors),
        Headroom(
            **common, margin=draw(st.integers(0, 12)), interval=draw(st.integers(1, 4))
        ),
        LogMax(**common, beta1=draw(st.sampled_from([0.0, 0.9, 0.99]))),
    ]
    return draw(st.sampled_from(made))


float32s = st.floats(0, float(np.float32(3e38)), width=32)
seens = st.builds(
    lambda found, amax, odd: Observation(found, odd if found else amax),
    st.booleans(),
    float32s | st.sampled_from([0.0, 1.0, 2.0**-126, 2.0**-149, INF, NAN]),
    st.sampled_from([INF, NAN, 1.0]),
)
histories = st.lists(seens, max_size=40)


@few
@given(policies(), histories)
@example(Headroom(), [Observation(found_inf=False, amax=0.0)])
@example(LogMax(), [Observation(found_inf=False, amax=0.0)] * 3)
@example(LogMax(beta1=0.0), [Observation(found_inf=True, amax=INF)] * 3)
@example(Probe(min_scale=2.0**15), [Observation(found_inf=True)] * 3)
@example(
    Probe(max_scale=2.0**17, growth_interval=1), [Observation(found_inf=False)] * 6
)
def test_state_is_finite_and_scale_bounded(
    policy: Policy, history: list[Observation]
) -> None:
    for state in states(policy, history):
        assert all(map(math.isfinite, flatten(state)))
        assert all(
            policy.min_scale <= scale <= policy.max_scale
            for scale in (state.scale, *state.pending)
        )
        assert len(state.pending) == policy.delay
        if isinstance(policy, Probe):
            assert policy.min_scale <= state.memory.base <= policy.max_scale
        assert all(float(np.float32(number)) == number for number in flatten(state))


@few
@given(policies(), histories, st.data())
def test_resume_is_exact(
    policy: Policy, history: list[Observation], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    after = [init(policy), *states(policy, history)]
    state = unflatten(policy, flatten(pickle.loads(pickle.dumps(after[cut]))))  # noqa: S301
    assert state == after[cut]
    assert hash(state) == hash(after[cut])
    for seen, wanted in zip(history[cut:], after[cut + 1 :], strict=True):
        before = state
        state = update(policy, state, seen)
        assert (state, before) == (wanted, before)
        assert list(map(type, flatten(state))) == list(map(type, flatten(wanted)))


@few
@given(histories, DELAYS, st.integers(1, 3))
def test_deduplicated_without_delay_equals_rule(
    history: list[Observation], delay: int, interval: int
) -> None:
    rule = Rule(init_scale=4.0, growth_interval=interval, min_scale=0.5, max_scale=16.0)
    same = {
        "init_scale": 4.0,
        "growth_interval": interval,
        "min_scale": 0.5,
        "max_scale": 16.0,
    }
    assert (
        replay(Deduplicated(**same), history).tolist() == replay(rule, history).tolist()
    )


def run(rule: Any, thresholds: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scales used and which overflowed, closed over the thresholds (the largest scales that do
    not).
    """
    state, used, found = init(rule), [], []
    for threshold in thresholds:
        used.append(state.scale)
        found.append(state.scale > threshold)
        amax = INF if found[-1] else 65504.0 / threshold
        state = update(rule, state, Observation(found[-1], amax))
    return np.array(used), np.array(found)


@few
@given(st.floats(2.0**-6, 2.0**6), st.integers(0, 4))
def test_headroom_never_overflows_at_constant_threshold(
    threshold: float, k: int
) -> None:
    policy = Headroom(init_scale=2.0**-6, margin=1, interval=2, delay=k)
    used, found = run(policy, [threshold] * (30 + k))
    assert not found.any()
    assert (
        used[-1] == 2.0 ** (math.floor(math.log2(threshold)) - 1)
        or math.log2(threshold).is_integer()
    )


@given(st.floats(2.0**-100, 2.0**100, width=32), st.integers(0, 12))
@example(amax=float(np.nextafter(np.float32(65504 / 2**14), np.float32(9))), margin=0)
@example(amax=65504 / 2**14, margin=0)
@example(amax=float(np.float32(1.9999389)), margin=2)
@example(amax=2.0**-100, margin=12)
def test_headroom_uses_largest_fitting_power(amax: float, margin: int) -> None:
    policy = Headroom(init_scale=2.0**126, margin=margin)
    scale = update(policy, init(policy), Observation(found_inf=False, amax=amax)).scale
    limit = 65504.0 / 2.0**margin
    assert scale * amax <= limit < 2 * scale * amax or scale == policy.max_scale


def test_headroom_grows_by_interval_maximum() -> None:
    policy = Headroom(init_scale=1.0, margin=0, interval=3)
    amaxes = [1.0, 40000.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    history = [Observation(found_inf=False, amax=a) for a in amaxes]
    # 40000 leaves no bit at scale 2 and stands in the first interval.
    assert replay(policy, history).tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 4, 4]
    assert replay(policy, [history[0]] * 10).tolist() == [1, 1, 2, 2, 2, 4, 4, 4, 8, 8]


def test_successful_probe_becomes_base() -> None:
    policy = Probe(init_scale=4.0, growth_interval=2, delay=2)
    newest = [state.newest for state in states(policy, [False] * 12)]
    assert newest == [4, 8, 4, 4, 8, 8, 16, 8, 8, 16, 16, 32]
    assert [
        s.newest
        for s in states(policy, [False, False, False, False, True, False, False])
    ][3:] == [4, 4, 4, 8]
    # An overflow of another step recalls the probe, and lowers the base.
    recalled = list(states(policy, [False, False, True, False, False, False]))
    assert [state.newest for state in recalled] == [4, 8, 2, 2, 4, 2]


def test_deduplicated_backoff_uses_applied_scale() -> None:
    policy = Deduplicated(init_scale=16.0, growth_interval=99, delay=2)
    assert [s.newest for s in states(policy, [True] * 6)] == [8, 8, 8, 4, 4, 4]
    # A clean step at an older scale says nothing of the newest.
    rising = Deduplicated(init_scale=4.0, growth_interval=2, delay=2)
    assert [s.newest for s in states(rising, [False] * 6)] == [4, 8, 8, 8, 8, 16]
    assert [s.newest for s in states(Rule(16.0, delay=2), [True] * 6)] == [
        8,
        4,
        2,
        1,
        0.5,
        0.25,
    ]


def test_headroom_backoff_uses_applied_scale() -> None:
    lost = Observation(found_inf=True, amax=INF)
    late = Headroom(init_scale=16.0, delay=2)
    assert [state.newest for state in states(late, [lost] * 6)] == [8, 8, 8, 4, 4, 4]
    for amax in (INF, NAN):  # of a size that is not known
        assert (
            update(
                Headroom(), init(Headroom()), Observation(found_inf=False, amax=amax)
            ).scale
            == 2.0**15
        )


def test_probe_starts_from_overridden_scale() -> None:
    policy = Probe(init_scale=4.0, delay=1)
    state = override(policy, init(policy), 1.0)
    assert update(policy, state, True).newest == 1.0  # 4, which overflowed, is above it


def log_max(policy: LogMax, amaxes: list[float]) -> float:
    """The formula in float64, apart from the averages' recursion."""
    x, n = np.log2(amaxes), len(amaxes)

    def mean(values: Any, beta: float) -> float:
        weights = (1 - beta) * beta ** np.arange(n - 1, -1, -1)
        return float((weights * values).sum() / (1 - beta**n))

    slow = mean(x, policy.beta2)
    sigma = math.sqrt(max(mean(x * x, policy.beta2) - slow * slow, 0.0))
    return float(
        np.clip(
            2.0 ** (16 - mean(x, policy.beta1) - 3.09 * sigma),
            policy.min_scale,
            policy.max_scale,
        )
    )


@few
@given(
    st.lists(st.floats(2.0**-8, 2.0**8, width=32), min_size=1, max_size=60),
    st.booleans(),
)
def test_log_max_matches_formula(amaxes: list[float], faithful: bool) -> None:
    policy = LogMax(beta1=0.9, beta2=0.95, faithful=faithful)
    scale = replay(policy, [Observation(found_inf=False, amax=a) for a in amaxes])[-1]
    # sigma^2 is a difference of float32 numbers near x^2, up to 64: 64 * 60 steps * 2^-24 before
    # the square root
    assert math.log2(scale) == pytest.approx(
        math.log2(log_max(policy, amaxes)), abs=0.25
    )


def test_faithful_log_max_stays_at_one() -> None:
    clean, overflow = (
        Observation(found_inf=False, amax=1.0),
        Observation(found_inf=True, amax=INF),
    )
    history = [clean] * 100 + [overflow] + [clean] * 11_900
    theirs, ours = (replay(LogMax(faithful=flag), history) for flag in (True, False))
    assert theirs[99] == ours[99] == 2.0**16
    assert set(theirs[100:]) == {1.0}  # O1
    assert ours[100:].min() > 2.0**12
    assert ours[-1] == pytest.approx(2.0**16, rel=0.01)


def test_synchronous_update_cancels_probe() -> None:
    policy = Probe(init_scale=4.0, growth_interval=2, delay=1)
    state = update(policy, update(policy, init(policy), False), False, synchronous=True)
    assert (state.scale, *state.pending, *state.memory) == (4, 4, 4, 0, 0)


@pytest.mark.parametrize(
    ("policy", "missing"),
    [(Headroom(), "amax=None"), (LogMax(), "amax=None")],
)
def test_missing_observation_is_named(policy: Policy, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        update(policy, init(policy), True)


REFUSED: dict[type[Policy], dict[str, list[Any]]] = {
    Probe: {
        "init_scale": [0.0, NAN, "8"],
        "min_scale": [2.0**-127],
        "max_scale": [INF],
        "growth_interval": [0],
    },
    Deduplicated: {"growth_factor": [0.5], "backoff_factor": [0.0]},
    Headroom: {
        "init_scale": [3.0],
        "max_scale": [2.0**20 - 1, 2.0**127],
        "margin": [13],
        "interval": [0],
        "top": [1e5],
    },
    LogMax: {"beta1": [1.0], "log_max": [200.0], "overflow_std_dev": [-1.0]},
}
FIELDS = [
    (policy, field, values)
    for policy, fields in REFUSED.items()
    for field, values in fields.items()
]


@pytest.mark.parametrize(("policy", "field", "values"), FIELDS)
def test_invalid_field_is_named(
    policy: type[Policy], field: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(
            (ValueError, TypeError), match=re.escape(f"{field}={value!r}")
        ):
            policy(**{field: value})


DAMAGED = [
    (Deduplicated(delay=1), 0, 1e300, "1e+300"),
    (Deduplicated(delay=1), 0, "8", "'8'"),
    (Deduplicated(delay=1), 1, NAN, "nan"),
    (Deduplicated(delay=1), 1, 0.0, "0.0"),
    (Deduplicated(delay=1), 2, 2**31 - 1, "2147483647"),  # one more leaves int32
    (Deduplicated(delay=1), 2, 1.5, "1.5"),
    (Headroom(), 2, INF, "inf"),
    (LogMax(), 1, NAN, "nan"),
]


@pytest.mark.parametrize(("policy", "at", "number", "shown"), DAMAGED)
def test_damaged_state_raises(policy: Policy, at: int, number: Any, shown: str) -> None:
    numbers: list[Any] = flatten(init(policy))
    with pytest.raises(ValueError, match=f"{len(numbers) - 1} numbers"):
        unflatten(policy, numbers[:-1])
    numbers[at] = number
    with pytest.raises((TypeError, ValueError), match=re.escape(shown)):
        unflatten(policy, numbers)


@few
@given(policies(), histories, st.lists(st.booleans(), min_size=40, max_size=40))
def test_pipeline_scales_equal_replay(
    policy: Policy, history: list[Observation], modes: list[bool]
) -> None:
    for is_async in ([True] * len(history), modes[: len(history)]):
        scales = [init(policy).scale, *replay(policy, history, is_async=is_async)]
        assert (
            pipeline.trajectory(policy, policy.delay, history, is_async=is_async)
            == scales
        )


def test_synchronous_scale_reaches_policy() -> None:
    pipe = pipeline.begin_iteration(pipeline.start(Deduplicated(delay=1), 1))
    pipe = pipeline.finish(pipe, 0, found_inf=False, new_scale=8.0, synchronous=True)
    pipe = pipeline.finish(pipeline.begin_iteration(pipe), 1, found_inf=True)
    pipe = pipeline.finish(pipeline.begin_iteration(pipe), 2, found_inf=False)
    assert [version.scale for version in pipe.versions[1:]] == [8.0, 8.0, 4.0]
