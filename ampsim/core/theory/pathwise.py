"""T1, T2, T4 to T7, T10: thresholds that are arbitrary, constant, drifting or spiked. Counting, no
probability.
"""

import math
from fractions import Fraction
from typing import NamedTuple

from ampsim.core.machine import Rule


def bits(rule: Rule) -> tuple[float, float]:
    """Return (a, b): what a growth adds to log2 of the scale and what a backoff takes from it."""
    if rule.backoff_factor >= 1.0:
        raise ValueError(
            f"backoff_factor={rule.backoff_factor}: expected below 1; without a backoff there is no skip rate"
        )
    return math.log2(rule.growth_factor), -math.log2(rule.backoff_factor)


# ------------------------------------------------------------------------------------------------
# T1: any history


def skips(rule: Rule, updates: int, descent: float, wasted: int = 0) -> float:
    """Return T1, the skip budget: the number of skips in `updates` steps, for any overflow
    sequence.

    Exact with the `wasted` finite steps of the sequence; with 0 it is an upper bound, attained by
    sequences that overflow only right after a growth or another overflow. `descent` is x_0 - x_n in
    bits, of the *newest* scale: T1 holds for every ``delay``. The bound also holds if the format or
    ``max_scale`` limits a growth. Assumes that each overflow backs off: no ``hysteresis``, and
    ``min_scale`` is not reached.
    """
    a, b = bits(rule)
    # (T1.1) s = (rho (n - W) + G B) / (G + rho),  B = (x_0 - x_n) / b
    rho = a / b
    return (rho * (updates - wasted) + rule.growth_interval * descent / b) / (
        rule.growth_interval + rho
    )


# --------------------------------------------------------------------- T2, T7: a constant threshold


def skip_rate(rule: Rule) -> float:
    """Return T2, the long-run skip rate under a constant threshold; exact for any factors and any
    start.

    No threshold that keeps the scale from drifting down costs more (T1).
    """
    a, b = bits(rule)
    # (T2.1) r = rho / (G + rho)
    return (a / b) / (rule.growth_interval + a / b)


def headroom(rule: Rule) -> float:
    """Return T2, the mean headroom in bits under a constant threshold.

    Exact if rho is irrational. If rho = p / q in lowest terms, the headroom at finite steps takes q
    values b / q apart and stays on them: this is the mean over a uniform phase, a single run is at
    most b / 2q away from it.
    """
    # (T2.2) E[u - x] = b / 2
    return bits(rule)[1] / 2


def trade_off(rule: Rule) -> float:
    """Return T7, under a constant threshold: skip rate times headroom in bits, which tends to v / 2
    as v / b -> 0.

    v = a / G is how fast the scale climbs: at a given v the backoff factor only moves cost between
    the two.
    """
    a, b = bits(rule)
    v = a / rule.growth_interval
    # (T7.1) r E[u - x] = v / 2 / (1 + v / b)
    return v / 2 / (1 + v / b)


# ------------------------------------------------------------------------ T4: recovery from a spike


class Recovery(NamedTuple):
    """The cost of a transient spike.

    Attributes:
        skips: steps that overflow.
        steps: from the spike's first step until the scale is back where it was, or above.
        deficit: bit-steps below where it was, on the way.
    """

    skips: int
    steps: int
    deficit: float


def recovery(rule: Rule, height: float, steps: int) -> Recovery:
    """Return T4: what it costs that the threshold falls to `height` bits below the scale for
    `steps` steps. Exact.

    Assumes that it is over when the scale first grows, which ``steps <= G`` ensures.
    """
    a, b = bits(rule)
    # m = min(d, ceil(h / b)) backoffs, g = ceil(m b / a) growths
    m = min(steps, math.ceil(height / b))
    g = math.ceil(m * b / a)
    if steps > m + rule.growth_interval:
        raise ValueError(
            f"steps={steps}: expected at most {m + rule.growth_interval}, before the scale grows again"
        )
    # (T4.1) m + g G steps;  b m (m - 1) / 2 + G sum over j < g of (m b - j a) bit-steps;  a = b =
    # 1: m + m G
    deficit = b * m * (m - 1) / 2 + rule.growth_interval * (
        g * m * b - a * g * (g - 1) / 2
    )
    return Recovery(m, m + g * rule.growth_interval, deficit)


# ---------------------------------------------------------------- T5: scales that come k steps late


class Stale(NamedTuple):
    """The cost of a pipeline of depth k under a constant threshold, a = b = 1.

    Attributes:
        skip_rate: skips per step.
        headroom: bits, mean over a uniform phase.
        burst: skips in a row.
    """

    skip_rate: float
    headroom: float
    burst: int


def stale(policy: str, growth_interval: int, k: int) -> Stale:
    """Return T5: what it costs that step t uses the scale after t - k updates. Constant threshold,
    a = b = 1, k < G.

    Policies: "cumulative", every overflow backs off the newest scale (RoundPipe;
    ``Rule(delay=k)``); "deduplicated", an overflow lowers the newest scale at most to half of the
    scale that overflowed; "probe", one step runs at twice the scale, and the scale and the growth
    tracker wait for its result.

    T1 holds for "cumulative", so staleness cannot raise its skip rate: the price is headroom.
    """
    if not 0 <= k < growth_interval:
        raise ValueError(
            f"k={k}: expected 0 to {growth_interval - 1}; with more, the scale grows again before the result is known"
        )
    g = growth_interval
    if policy == "cumulative":
        # (T5.1) r = (k+1) / ((k+1)(G+1) + k);  1/2 + (G k (k+1) / 2 + k (k-1) / 2) / ((k+1) G + k),
        # about (k+1) / 2
        lost = (g * k * (k + 1) / 2 + k * (k - 1) / 2) / ((k + 1) * g + k)
        return Stale((k + 1) / ((k + 1) * (g + 1) + k), 0.5 + lost, k + 1)
    if policy == "deduplicated":
        # (T5.2) r = (k+1) / (G + 2k + 1)
        return Stale((k + 1) / (g + 2 * k + 1), 0.5, k + 1)
    if policy == "probe":
        # (T5.3) r = 1 / (G + 1 + k)
        return Stale(1 / (g + 1 + k), 0.5, 1)
    raise ValueError(
        f"policy={policy!r}: expected 'cumulative', 'deduplicated', or 'probe'"
    )


# ------------------------------------------------------------------------- T6: a drifting threshold


def drifting_skip_rate(rule: Rule, drift: Fraction | float) -> float:
    """Return T6, the long-run skip rate when the threshold moves by `drift` bits per step.

    Upwards exact for any factors; above a / G the scale cannot follow, never overflows, and the
    headroom grows without end. Downwards for a = b. Exact if gap = a / |drift| is an integer, which
    a Fraction can say, or if neither integer next to it is a multiple of G + 1; else off by less
    than one skip in gap steps.
    """
    a, b = bits(rule)
    interval = rule.growth_interval
    if drift >= 0:
        # (T6.1) r = (rho - G delta / b) / (G + rho)
        return max(0.0, (a / b - interval * float(drift) / b) / (interval + a / b))
    if a != b:
        raise ValueError(
            f"drift={drift}: expected at least 0 unless growth_factor * backoff_factor = 1"
        )
    # Steps in which the threshold falls by one backoff.
    gap = Fraction(a) / -Fraction(drift)
    if gap <= 1:
        return 1.0
    # (T6.2) r = |delta| / a (1 + floor(gap / (G + 1))): each fall is a skip, and so is each growth
    # in between
    growths = Fraction(gap // (interval + 1))
    if gap % (interval + 1) == 0:
        # Every second fall meets a growth, and the next growth comes a step later.
        growths -= Fraction(1, 2)
    return float((1 + growths) / gap)


# -----------------------------------------------------------------------------------------------
# T10: hysteresis


def hysteresis_skip_rate(rule: Rule) -> float:
    """Return T10, the skip rate when a backoff takes H overflows, reset at a growth; H / (G + H) if
    a = b.

    Exact under a constant threshold if rho >= 1 (if a = b it is the same for the other resets), and
    T1's bound on the long-run rate of any overflow sequence. If a finite step resets the
    hysteresis, there is no such bound: alternating overflows and finite steps skip every second
    step and never back off.
    """
    a, b = bits(rule)
    # (T10.1) r = (rho + H - 1) / (G + rho + H - 1)
    lost = a / b + rule.hysteresis - 1
    return lost / (rule.growth_interval + lost)


def hysteresis_bound(rule: Rule) -> float:
    """Return T10, the largest long-run skip rate of any overflow sequence without downward drift of
    the scale.

    Equal to `hysteresis_skip_rate` for a reset at a growth; attained by an adversary for the
    others.

    Raises:
        ValueError: If a finite step resets the hysteresis, so that there is no bound.
    """
    a, b = bits(rule)
    per_backoff, free = _overflows(rule)
    # (T10.2) r = l / (G + l),  l = rho (H if a backoff resets else 1) + (H - 1 if a growth resets
    # else 0)
    lost = a / b * per_backoff + free
    return lost / (rule.growth_interval + lost)


def hysteresis_skips(rule: Rule, updates: int, descent: float) -> float:
    """Return T10, the most skips in `updates` steps, for any overflow sequence.

    It is T1's bound, `skips`, if the rule has no hysteresis, and has the same assumptions but that
    one. `descent` is x_0 - x_n in bits.

    Raises:
        ValueError: If a finite step resets the hysteresis, so that there is no bound.
    """
    a, b = bits(rule)
    per_backoff, free = _overflows(rule)
    lost = a / b * per_backoff + free
    interval = rule.growth_interval
    # (T10.0) s <= (l n + G (B + H - 1)) / (G + l), with B times H if a backoff resets
    at_ends = per_backoff * descent / b + rule.hysteresis - 1
    return (lost * updates + interval * at_ends) / (interval + lost)


def _overflows(rule: Rule) -> tuple[int, int]:
    """Return how many overflows a backoff takes, and how many after a growth take no bit."""
    reset = rule.hysteresis_reset
    hysteresis = rule.hysteresis
    if "clean" in reset and hysteresis > 1:
        raise ValueError(
            f"hysteresis_reset={sorted(reset)}: expected no 'clean'; with it there is no bound (T10)"
        )
    per_backoff = hysteresis if "backoff" in reset else 1
    free = hysteresis - 1 if "growth" in reset else 0
    return per_backoff, free


# ------------------------------------------------------------------- a sum over data-parallel ranks


def bits_lost_to_ranks(ranks: int, predivide: float = 1.0) -> float:
    """Return how many bits lower a scale settles on N ranks than on one, if all ranks have equal
    float16 gradients.

    The reduction divides each rank's gradient by `predivide`, sums in float16, and divides the sum
    by N / `predivide`: 1 is sum-then-divide, N is divide-then-sum. The sum of gradients of at most
    g in absolute value is at most N g / `predivide`, so that other gradients lose at most as much.
    A division before the sum costs log2(`predivide`) bits at the small end of the range instead.
    Exact if N and `predivide` are powers of two.

    Args:
        ranks: number of data-parallel ranks N, at least 1.
        predivide: from 1 to N.

    Raises:
        ValueError: If `predivide` is not from 1 to `ranks`.
    """
    if not 1 <= predivide <= ranks:
        raise ValueError(f"predivide={predivide}: expected 1 to ranks={ranks}")
    return math.log2(ranks / predivide)
