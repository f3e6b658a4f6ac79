"""Each theorem against the machine: exactly where it is exact, else to the tolerance that stands
there.

The paper's theorems name these tests; `tests/paper` holds the two together.
"""

import itertools
import math
import random
from collections.abc import Iterable
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ampsim.core import properties, theory
from ampsim.core.machine import Arithmetic, Rule, State, init, update
from ampsim.core.policies import Deduplicated, Probe
from tests.core.helpers import run, scales
from tests.examples import examples

WIDE = Arithmetic(dtype="float64")  # 2000 bits of scale
START = 2.0**16
LONG_RUNS = settings(max_examples=examples(ms=5, least=50))
intervals = st.integers(1, 12)
flags = st.lists(st.booleans(), max_size=60)
powers = st.integers(
    1, 3
)  # growth_factor 2^a, backoff_factor 2^-b: the machine is exact in bits


def plain(interval: int, a: int = 1, b: int = 1, **more) -> Rule:
    return Rule(START, 2.0**a, 2.0**-b, interval, arithmetic=WIDE, **more)


def follow(rule: Rule, thresholds: Iterable[float]) -> tuple[list[bool], list[float]]:
    """Overflows and log2 of the scale in force, where step t overflows above log2 threshold
    ``thresholds[t]``.
    """
    state, found, x = init(rule), [], []
    for threshold in thresholds:
        x.append(math.log2(state.scale))
        found.append(x[-1] > threshold)
        state = update(rule, state, found[-1])
    return found, x


def final(rule: Rule, found: list[bool]) -> State:
    return [init(rule), *run(rule, found)][-1]


def window(
    rule: Rule, threshold: float, period: int, warm: int
) -> tuple[list[bool], list[float]]:
    """Overflows and headroom at clean steps over one period of a periodic run."""
    found, x = follow(rule, [threshold] * (warm + period))
    return found[warm:], [
        threshold - level
        for level, bad in zip(x[warm:], found[warm:], strict=True)
        if not bad
    ]


# ------------------------------------------------------------------------------------------------------------
# T1


@settings(max_examples=examples(ms=3))
@given(intervals, powers, powers, flags, st.integers(0, 4))
@example(1, 1, 1, [True], 0)
def test_t1_is_exact_with_wasted_steps(interval, a, b, found, delay) -> None:
    rule = plain(interval, a, b, delay=delay)
    descent = 16 - math.log2(final(rule, found).newest)
    # Finite steps that led to no growth; the last run's remainder is not lost yet, but counts.
    runs = [len([*run]) for bad, run in itertools.groupby(found) if not bad]
    wasted = sum(run % interval for run in runs)
    assert theory.skips(rule, len(found), descent, wasted) == pytest.approx(
        sum(found), abs=1e-9
    )
    assert sum(found) <= theory.skips(rule, len(found), descent) + 1e-9


@settings(max_examples=examples(ms=3))
@given(intervals, flags, st.integers(16, 20))
def test_t1_bounds_skips_at_max_scale(interval, found, top) -> None:
    rule = plain(interval, max_scale=2.0**top)
    descent = 16 - math.log2(final(rule, found).scale)
    assert sum(found) <= theory.skips(rule, len(found), descent) + 1e-9


@settings(max_examples=examples(ms=3))
@given(intervals, powers, powers, flags)
def test_t1_matches_skip_budget_check(interval, a, b, found) -> None:
    rule = plain(interval, a, b)
    trace = [START, *scales(rule, found)]
    assert (
        properties.skips_stay_within_budget(properties.History(rule, found, trace))
        is None
    )
    bound = theory.skips(rule, len(found), math.log2(trace[0] / trace[-1]))
    assume(min(trace) > 2.0**-100)
    too_many = [True] * min(len(found), math.floor(bound + 1.01)) + [False] * len(found)
    broken = properties.skips_stay_within_budget(
        properties.History(rule, too_many[: len(found)], trace)
    )
    assert (broken is not None) == (sum(too_many[: len(found)]) > bound + 1e-6)


def test_skip_rate_without_backoff_raises() -> None:
    with pytest.raises(ValueError, match=r"backoff_factor=1.0: expected below 1"):
        theory.skip_rate(Rule.unchecked(backoff_factor=1.0))


# --------------------------------------------------------------------------------------------------------
# T2, T7


@given(intervals, powers, powers)
def test_t2_and_t7_are_exact(interval, a, b) -> None:
    rule, common = plain(interval, a, b), math.gcd(a, b)
    period = (b * interval + a) // common
    phases = [(i + 0.5) * common / 4 for i in range(4 * b // common)]
    rooms = []
    for phase in phases:
        found, room = window(rule, 16 + phase, period, warm=2 * period)
        assert sum(found) / period == pytest.approx(theory.skip_rate(rule), rel=1e-12)
        mean = sum(room) / len(room)
        assert abs(mean - theory.headroom(rule)) <= common / 2  # b / 2q
        rooms.append(mean)
    mean = sum(rooms) / len(rooms)
    assert mean == pytest.approx(theory.headroom(rule), rel=1e-12)
    assert theory.skip_rate(rule) * mean == pytest.approx(
        theory.trade_off(rule), rel=1e-12
    )


def test_t2_with_irrational_rho() -> None:
    rule = Rule(START, 1.5, 0.8, 20, arithmetic=WIDE)
    found, room = window(rule, 16.1, 20_000, warm=100)
    assert sum(found) / len(found) == pytest.approx(theory.skip_rate(rule), rel=0.005)
    assert sum(room) / len(room) == pytest.approx(theory.headroom(rule), rel=0.01)


def test_torch_default_rates() -> None:
    assert theory.skip_rate(Rule()) == 1 / 2001
    assert theory.headroom(Rule()) == 0.5
    assert theory.trade_off(Rule()) == pytest.approx(0.5 / 2001)
    assert 1 / theory.critical_bad_rate(Rule()) == pytest.approx(2885.9, abs=0.1)


# ------------------------------------------------------------------------------------------------------------
# T3


probabilities = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=7).map(sorted)


def solved(p: list[float], interval: int, backoff: int) -> np.ndarray:
    """Shares of (level, count) from the machine's own transitions, its bounds included."""
    rule = plain(
        interval, 1, backoff, min_scale=START, max_scale=START * 2.0 ** (len(p) - 1)
    )
    states = list(itertools.product(range(len(p)), range(interval)))
    moves = np.zeros((len(states), len(states)))
    for here, (level, count) in enumerate(states):
        for found, chance in ((True, p[level]), (False, 1 - p[level])):
            after = update(rule, State(START * 2.0**level, count), found)
            moves[
                here,
                states.index(
                    (round(math.log2(after.scale / START)), after.growth_tracker)
                ),
            ] += chance
    system = np.vstack([moves.T - np.eye(len(states)), np.ones(len(states))])
    shares = np.linalg.lstsq(system, np.eye(len(states) + 1)[-1], rcond=None)[0]
    return shares.reshape(len(p), interval)


@LONG_RUNS
@given(probabilities, st.integers(1, 5), st.integers(1, 3))
@example([0.0, 0.5], 2, 1)
@example([0.0, 0.0, 0.2, 1.0, 1.0], 3, 2)
@example([0.3], 2, 1)
def test_t3_matches_stationary_distribution(p, interval, backoff) -> None:
    form = theory.stationary(p, interval, backoff)
    shares = np.stack([form.at(count) for count in range(interval)], axis=1)
    exact = solved(p, interval, backoff)
    assert shares == pytest.approx(exact, abs=1e-9)
    assert form.levels == pytest.approx(exact.sum(axis=1), abs=1e-9)
    assert form.skip_rate == pytest.approx(float(exact.sum(axis=1) @ p), abs=1e-9)
    assert form.visits.sum() == pytest.approx(1)
    clean = exact.sum(axis=1) * (1 - np.array(p))
    if clean.sum() > 1e-6:
        assert form.clean == pytest.approx(clean / clean.sum(), abs=1e-7)


@pytest.mark.parametrize("interval", [5, 50, 2000])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 6.0])
def test_t3_without_bounds_matches_paper(interval: int, sigma: float) -> None:
    x, p = theory.normal_thresholds(16.5, sigma)
    form = theory.stationary(p, interval)
    up = (1 - p) ** interval
    seen = form.visits > 1e-12
    both = seen[:-1] & seen[1:]
    ratio = form.visits[1:][both] / form.visits[:-1][both]
    assert ratio == pytest.approx(up[:-1][both] / (1 - up[1:][both]), rel=1e-6)
    assert form.skip_rate == pytest.approx(1 / (2 * form.duration), rel=1e-12)
    assert form.skip_rate <= theory.skip_rate(plain(interval)) * (1 + 1e-12)  # T1
    tracked = 16.5 - sigma * NormalDist().inv_cdf(theory.tracked_quantile(interval))
    assert abs(x[form.visits.argmax()] - tracked) <= 1


def test_t3_matches_published_staircase_quantiles() -> None:
    # Levitt 1971, Table I: 1, 2, 3 and 4 down, 1 up; Kaernbach 1991: steps up and down as 1 to 3.
    assert [round(theory.tracked_quantile(down), 3) for down in (1, 2, 3, 4)] == [
        0.5,
        0.707,
        0.794,
        0.841,
    ]
    assert theory.tracked_quantile(1, rho=1 / 3) == pytest.approx(0.75)
    rule = plain(7, 2, 3)
    assert theory.tracked_quantile(7, rho=2 / 3) == pytest.approx(
        1 - theory.critical_bad_rate(rule)
    )


@pytest.mark.parametrize("interval", [2, 5, 50])
def test_t3_matches_k_in_a_row(interval: int) -> None:
    # Oron and Hoff 2009: of one level, up with F (1 - F)^k / (1 - (1 - F)^k), down with F, up and
    # down exchanged.
    p = np.array([0.0, 0.01, 0.05, 0.2, 0.6, 0.9, 1.0])
    with np.errstate(invalid="ignore"):
        up = np.where(
            p > 0, p * (1 - p) ** interval / (1 - (1 - p) ** interval), 1 / interval
        )
    expected = np.cumprod([1.0, *(up[:-1] / p[1:])])
    assert theory.stationary(p, interval).levels == pytest.approx(
        expected / expected.sum(), rel=1e-12, abs=1e-300
    )


@pytest.mark.parametrize("backoff", [1, 2, 5])
def test_t3_arrivals_peak_near_tracked_quantile(backoff: int) -> None:
    x, p = theory.normal_thresholds(0.0, 40.0)
    form = theory.stationary(p, 50, backoff)
    tracked = -40.0 * NormalDist().inv_cdf(theory.tracked_quantile(50, rho=1 / backoff))
    assert abs(x[form.visits.argmax()] - tracked) <= (1 + backoff) / 2


def test_t3_above_critical_reaches_lowest_level() -> None:
    # The same chance at every level below the top: above the critical rate arrivals pile up at the
    # lowest level.
    form = theory.stationary([0.01] * 300 + [1.0], 100)
    assert form.visits.argmax() == 0


def test_t3_with_constant_threshold_is_t2() -> None:
    form = theory.stationary([0, 0, 0, 1], 50)
    assert form.skip_rate == pytest.approx(1 / 51, rel=1e-14)
    assert form.visits == pytest.approx([0, 0, 0.5, 0.5])


def test_ranks_equal_longer_interval() -> None:
    p = np.array([1e-6, 1e-3, 0.02, 0.3, 1.0])
    many = theory.stationary([*(-np.expm1(8 * np.log1p(-p[:-1]))), 1.0], 50)
    assert many.visits == pytest.approx(theory.stationary(p, 400).visits, rel=1e-9)
    assert theory.tracked_quantile(50, 8) == theory.tracked_quantile(400)
    assert 1 - theory.tracked_quantile(2000) == pytest.approx(
        math.log(2) / 2000, rel=1e-3
    )


@given(st.floats(2.0**-8, 1.0), st.integers(0, 6), st.data())
def test_summed_halves_lose_bits_to_ranks(gradient, doublings, data) -> None:
    def settled(ranks: int, predivide: int) -> int:
        """The largest k for which the average of `ranks` gradients of 2^k times this one is finite."""
        for k in range(40, 0, -1):
            with np.errstate(over="ignore"):
                part = np.float16(gradient * 2.0**k) / np.float16(predivide)
                summed = np.float16(0)
                for _ in range(ranks):
                    summed = summed + part
            if np.isfinite(summed):
                return k
        raise AssertionError("no finite scale")

    predivided = data.draw(st.integers(0, doublings))
    lost = theory.bits_lost_to_ranks(2**doublings, 2**predivided)
    assert (
        settled(1, 1) - settled(2**doublings, 2**predivided)
        == lost
        == doublings - predivided
    )


@LONG_RUNS
@given(
    st.dictionaries(st.integers(-20, 20), st.integers(1, 9), min_size=1, max_size=8),
    intervals,
)
def test_observed_thresholds_give_overflow_probabilities(thresholds, interval) -> None:
    x, form = theory.of_thresholds(thresholds, interval)
    total = sum(thresholds.values())
    wanted = [sum(n for k, n in thresholds.items() if k < j) / total for j in x]
    assert form.overflow == pytest.approx(wanted)
    assert (form.overflow[0], form.overflow[-1]) == (0, 1)


def test_normal_thresholds_span_zero_to_one() -> None:
    x, p = theory.normal_thresholds(3.0, 2.0)
    assert p[0] < 1e-300
    assert p[-1] == 1.0
    assert p[x == 3] == 0.5
    assert p[x == 5] == pytest.approx(NormalDist().cdf(1))


@pytest.mark.parametrize("bad", [[0.5, 0.4], [-0.1], [1.1], [], [[0.1]]])
def test_invalid_probabilities_raise(bad) -> None:
    with pytest.raises(ValueError, match="expected probabilities that do not decrease"):
        theory.stationary(bad, 5)


# ------------------------------------------------------------------------------------------------------------
# T4


@given(
    intervals,
    powers,
    powers,
    st.integers(1, 40).map(lambda n: n / 4),
    st.integers(0, 20),
)
@example(5, 1, 1, 3.0, 8)  # the spike ends with the first growth
@example(5, 1, 1, 3.0, 9)
def test_t4_matches_state_machine(interval, a, b, height, steps) -> None:
    rule = plain(interval, a, b)
    if steps > min(steps, math.ceil(height / b)) + interval:
        with pytest.raises(ValueError, match=f"steps={steps}: expected at most"):
            theory.recovery(rule, height, steps)
        return
    wanted = theory.recovery(rule, height, steps)
    found, x = follow(
        rule, [16 - height] * steps + [math.inf] * (wanted.steps - steps + 1)
    )
    assert sum(found) == wanted.skips
    back = next(t for t in range(steps, len(x)) if x[t] >= 16) if wanted.skips else 0
    assert back == wanted.steps
    assert sum(16 - level for level in x[:back]) == wanted.deficit


# ------------------------------------------------------------------------------------------------------------
# T5


late = st.integers(1, 12).flatmap(
    lambda g: st.tuples(st.just(g), st.integers(0, min(g - 1, 5)))
)


def longest(found: list[bool]) -> int:
    return max(
        (len(list(run)) for flag, run in itertools.groupby(found + found) if flag),
        default=0,
    )


@settings(max_examples=examples(ms=3))
@given(late)
def test_t5_cumulative_matches_delayed_state_machine(case) -> None:
    interval, k = case
    rule, period = plain(interval, delay=k), (k + 1) * (interval + 1) + k
    wanted = theory.stale("cumulative", interval, k)
    rooms = []
    for phase in (0.25, 0.75):
        found, room = window(rule, 16 + phase, period, warm=3 * period)
        assert sum(found) / period == pytest.approx(wanted.skip_rate, rel=1e-12)
        assert longest(found) == wanted.burst
        rooms.append(sum(room) / len(room))
    assert sum(rooms) / 2 == pytest.approx(wanted.headroom, rel=1e-12)


@settings(max_examples=examples(ms=3))
@given(late)
def test_t5_deduplicated_and_probe_are_exact(case) -> None:
    interval, k = case
    for policy, period in (
        (Deduplicated, interval + 2 * k + 1),
        (Probe, interval + 1 + k),
    ):
        wanted = theory.stale(policy.__name__.lower(), interval, k)
        found, room = window(
            policy(init_scale=START, growth_interval=interval, delay=k),
            16.5,
            period,
            warm=3 * period,
        )
        assert sum(found) / period == pytest.approx(wanted.skip_rate, rel=1e-12)
        assert longest(found) == wanted.burst
        assert {*room} == {wanted.headroom}


def test_t5_headroom_grows_with_delay() -> None:
    assert theory.stale("cumulative", 10**6, 4).headroom == pytest.approx(2.5, abs=1e-5)
    assert (
        theory.stale("cumulative", 50, 0)
        == theory.stale("probe", 50, 0)
        == theory.stale("deduplicated", 50, 0)
    )


def test_t5_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="k=5: expected 0 to 4"):
        theory.stale("cumulative", 5, 5)
    with pytest.raises(ValueError, match="policy='eager': expected 'cumulative'"):
        theory.stale("eager", 5, 1)


# ------------------------------------------------------------------------------------------------------------
# T6


def drifting(rule: Rule, drift: Fraction, steps: int) -> int:
    """Skips under a threshold that starts a third of a bit above the scale and moves exactly."""
    state, skips = init(rule), 0
    for t in range(steps):
        level = round(math.log2(state.scale)) - 16
        found = (
            3 * level - 1
        ) * drift.denominator > 3 * drift.numerator * t  # level > 1/3 + drift t
        skips += found
        state = update(rule, state, found)
    return skips


@LONG_RUNS
@given(intervals, powers, powers, st.integers(0, 9))
@example(1, 3, 1, 6)
def test_t6_upward_drift_matches_state_machine(interval, a, b, tenths) -> None:
    rule, drift = plain(interval, a, b), Fraction(a, interval) * Fraction(tenths, 9)
    steps = int(min(600, 900 / max(drift, 1)))  # the scale stays below 2^1000
    slack = (
        2 * a + b + 1
    ) / b + a / b  # x - threshold moves by less than 2a + b + 1 in all
    assert (
        abs(
            drifting(rule, drift, steps)
            - theory.drifting_skip_rate(rule, drift) * steps
        )
        <= slack
    )


def test_t6_fast_threshold_has_no_skips() -> None:
    assert theory.drifting_skip_rate(plain(10), Fraction(1, 9)) == 0
    assert drifting(plain(10), Fraction(1, 9), 2000) == 0


gaps = st.fractions(1, 40, max_denominator=7)


@LONG_RUNS
@given(st.integers(1, 9), gaps)
@example(4, Fraction(10))  # every second fall meets a growth
@example(1, Fraction(2))
@example(3, Fraction(1))
@example(3, Fraction(1, 2))
@example(50, Fraction(102))
def test_t6_downward_drift_matches_state_machine(interval, gap) -> None:
    rule, falls = plain(interval), 60
    steps = int(gap * falls)
    seen, wanted = (
        drifting(rule, -1 / gap, steps),
        theory.drifting_skip_rate(rule, -1 / gap) * steps,
    )
    beside = {math.floor(gap) % (interval + 1), math.ceil(gap) % (interval + 1)}
    if gap.denominator == 1 or 0 not in beside:
        assert abs(seen - wanted) <= 3
    else:
        assert abs(seen - wanted) <= falls + 3  # less than one a fall
    assert (
        wanted <= steps * (1 + interval / gap) / (interval + 1) + 3
        or gap <= 1
        or 0 in beside
    )  # T1


def test_t6_at_resonance_stays_within_t1() -> None:
    rule, gap = plain(50), Fraction(102)
    rate = theory.drifting_skip_rate(rule, -1 / gap)
    bound = theory.skips(rule, 10_200, 100) / 10_200
    assert rate < bound < (1 + gap // 51) / gap
    assert drifting(rule, -1 / gap, 10_200) / 10_200 == pytest.approx(rate, abs=2e-4)


def test_t6_unequal_factors_downward_raise() -> None:
    with pytest.raises(ValueError, match="expected at least 0 unless"):
        theory.drifting_skip_rate(plain(5, 1, 2), -0.1)


# ------------------------------------------------------------------------------------------------------------
# T8


@LONG_RUNS
@given(st.integers(1, 60), st.floats(0.01, 0.95))
def test_t8_below_critical_rate_is_t3(interval, share) -> None:
    rate = share * theory.critical_bad_rate(plain(interval))
    form = theory.stationary([rate] * 400 + [1.0], interval)
    under = form.levels[:-1] / form.levels[:-1].sum()
    lost = float(under @ np.arange(399, -1, -1))
    assume(under[0] < 1e-12)  # the lowest level is never felt
    assert theory.bad_step_skip_rate(interval, rate) == pytest.approx(
        form.skip_rate, rel=1e-9
    )
    assert theory.bad_step_headroom(interval, rate) == pytest.approx(
        lost, rel=1e-6, abs=1e-12
    )


@settings(max_examples=examples(ms=3))
@given(st.integers(1, 3000), powers, powers)
def test_t8_drift_changes_sign_at_critical(interval, a, b) -> None:
    rule = plain(interval, a, b)
    rate = theory.critical_bad_rate(rule)
    assert theory.bad_step_drift(rule, rate) == pytest.approx(0, abs=1e-9)
    assert (
        theory.bad_step_drift(rule, rate * 1.01)
        < 0
        < theory.bad_step_drift(rule, rate * 0.99)
    )
    assert (
        theory.bad_step_headroom(
            interval, 1.01 * theory.critical_bad_rate(plain(interval))
        )
        == math.inf
    )
    assert rate == pytest.approx(
        math.log1p(a / b) / interval, rel=math.log1p(a / b) / interval
    )


@settings(max_examples=examples(ms=3))
@given(intervals, powers, powers, st.lists(st.booleans(), min_size=1, max_size=60))
def test_t8_excess_overflows_lower_scale(interval, a, b, found) -> None:
    rule = plain(interval, a, b)
    share = sum(found) / len(found)
    assume(share > theory.skip_rate(rule))
    lost = 16 - math.log2(final(rule, found).scale)
    assert (
        lost
        >= len(found) * (share * (interval + a / b) - a / b) * b / interval - 1e-9
        > 0
    )


@pytest.mark.parametrize(
    ("a", "b", "rate"), [(1, 1, 0.05), (1, 1, 0.01), (1, 2, 0.04), (3, 1, 0.2)]
)
def test_t8_drift_matches_simulation(a: int, b: int, rate: float) -> None:
    luck, rule = random.Random(1), plain(20, a, b)  # noqa: S311
    moved, runs = 0.0, 60
    for _ in range(runs):
        state = init(rule)
        for _ in range(1000):
            state = update(rule, state, luck.random() < rate)
        moved += math.log2(state.scale) - 16
    assert moved / runs / 1000 == pytest.approx(
        theory.bad_step_drift(rule, rate), rel=0.06
    )


@pytest.mark.parametrize(("price", "rate"), [(0.1, 1e-3), (0.5, 1e-2), (0.01, 1e-4)])
def test_t8_best_interval_is_local_minimum(price: float, rate: float) -> None:
    def cost(g: int) -> float:
        rule = plain(g)
        if rate >= theory.critical_bad_rate(rule):
            return math.inf
        form = theory.stationary([rate] * 300 + [1.0], g)
        below = form.levels[:-1] / form.levels[:-1].sum()
        return form.skip_rate + price * float(below @ np.arange(299, -1, -1))

    best = theory.best_interval(rate, price)
    assert cost(best) <= min(cost(best - 1), cost(best + 1)) * (1 + 1e-12)
    assert best < math.log(2) / rate
    assert theory.best_interval(1e-6, 1.0) == pytest.approx(1000, rel=0.01)
    assert theory.best_interval(0.6, 1.0) == 1  # no interval is below ln 2 / lambda


# ------------------------------------------------------------------------------------------------------------
# T9


@pytest.mark.parametrize(("sigma", "lost"), [(5.0, 5.0), (8.0, 0.0), (12.0, 2.0)])
def test_t9_matches_fp16_underflow(sigma: float, lost: float) -> None:
    count, score = 20_000, 4.75
    normal = NormalDist(16 - lost - sigma * score, sigma)
    log2 = np.array(
        [normal.inv_cdf((i + 0.5) / count) for i in range(count)]
    )  # evenly spread, nothing random
    with np.errstate(over="ignore"):
        zero = int((np.exp2(log2).astype(np.float16) == 0).sum())
    assert abs(zero - theory.flushed_share(sigma, score, lost) * count) <= 1


def test_t9_range_matches_fp16() -> None:
    half = np.array([2.0**-25, 2.0**-25 * 1.001, 65519.0, 65520.0])
    with np.errstate(over="ignore"):
        assert half.astype(np.float16).tolist() == [0.0, 2.0**-24, 65504.0, math.inf]
    assert math.log2(65520) + 25 == pytest.approx(theory.FP16_BINADES, abs=1e-3)


@given(st.floats(1, 6), st.floats(1e-9, 0.4), st.floats(0, 10), st.floats(15, 60))
def test_t9_widest_spread_flushes_given_share(score, share, lost, binades) -> None:
    sigma = theory.widest_spread(score, share, lost, binades)
    assert theory.flushed_share(sigma, score, lost, binades) == pytest.approx(
        share, rel=1e-6
    )


# -----------------------------------------------------------------------------------------------------------
# T10


resets = st.sampled_from(["clean", "growth", "backoff"])


@given(intervals, st.integers(1, 5), resets)
def test_t10_is_exact_at_constant_threshold(interval, hysteresis, reset) -> None:
    rule = plain(interval, hysteresis=hysteresis, hysteresis_reset=frozenset({reset}))
    period = interval + hysteresis
    found, _ = window(rule, 16.5, period, warm=3 * period)
    assert sum(found) / period == pytest.approx(
        theory.hysteresis_skip_rate(rule), rel=1e-12
    )
    assert theory.hysteresis_skip_rate(rule.replace(hysteresis=1)) == theory.skip_rate(
        rule
    )


@given(intervals, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_t10_with_growth_of_several_backoffs(interval, hysteresis, b, times) -> None:
    rule = plain(interval, times * b, b, hysteresis=hysteresis)
    period = interval + times + hysteresis - 1
    found, _ = window(rule, 16.1, period, warm=3 * period)
    assert sum(found) / period == pytest.approx(
        theory.hysteresis_skip_rate(rule), rel=1e-12
    )


bounded = st.sets(st.sampled_from(["growth", "backoff"])).map(frozenset)


@settings(max_examples=examples(ms=3))
@given(intervals, powers, powers, flags, st.integers(1, 4), bounded)
@example(2, 1, 1, [True] * 30, 3, frozenset({"growth"}))
@example(1, 1, 1, [True, False, True, True] * 9, 2, frozenset({"growth", "backoff"}))
def test_t10_bounds_generated_sequences(
    interval, a, b, found, hysteresis, reset
) -> None:
    rule = plain(interval, a, b, hysteresis=hysteresis, hysteresis_reset=reset)
    descent = 16 - math.log2(final(rule, found).scale)
    bound = theory.hysteresis_skips(rule, len(found), descent)
    assert sum(found) <= bound + 1e-9
    if reset == {"growth"}:
        rate = theory.hysteresis_bound(rule)
        assert rate == pytest.approx(theory.hysteresis_skip_rate(rule))
    if hysteresis == 1:
        assert bound == pytest.approx(theory.skips(rule, len(found), descent))


@given(intervals, st.integers(1, 4), bounded)
def test_t10_bound_is_attained(interval, hysteresis, reset) -> None:
    rule = plain(interval, hysteresis=hysteresis, hysteresis_reset=reset)
    lowers = (
        hysteresis if "backoff" in reset else 1
    )  # overflows of which the last backs off
    free = (
        hysteresis - 1 if "growth" in reset else 0
    )  # overflows that the reset at a growth forgives
    cycle = [*[True] * (lowers + free), *[False] * interval]
    start = [True] * (hysteresis - 1) if reset <= {"growth"} else []
    begin, end = (final(rule, [*start, *cycle * many]).scale for many in (2, 12))
    assert (begin, sum(cycle) / len(cycle)) == (
        end,
        pytest.approx(theory.hysteresis_bound(rule), rel=1e-12),
    )


def test_t10_unbounded_if_finite_step_resets() -> None:
    impatient = plain(50, hysteresis_reset=frozenset({"clean"}))
    assert theory.hysteresis_bound(impatient) == pytest.approx(
        theory.hysteresis_skip_rate(impatient)
    )
    rule = plain(50, hysteresis=2, hysteresis_reset=frozenset({"clean"}))
    with pytest.raises(ValueError, match="there is no bound"):
        theory.hysteresis_bound(rule)
    found = [True, False] * 500
    assert final(rule, found).scale == START
    assert sum(found) / len(found) > 10 * theory.hysteresis_skip_rate(rule)
