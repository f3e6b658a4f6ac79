"""T3, T8, T9: independent random thresholds, steps that are bad at random, log-normal gradients."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ampsim.core.machine import Rule
from ampsim.core.theory.pathwise import bits

Array = npt.NDArray[np.float64]

# from 2^-25, which fp16 rounds to zero, to 2^16, which overflows (65520 = 2^15.9997 exactly)
FP16_BINADES = 41.0

_normal = NormalDist()


# ---------------------------------------------------------------------------- T3: random thresholds


@dataclass(frozen=True)
class Stationary:
    """T3: the stationary distribution of (level, growth tracker), where level j is x = x_0 + j a.

    Attributes:
        overflow: p, (levels,): chance that a step at this level overflows.
        visits: nu, (levels,): share of the arrivals at a level with count 0.
        stay: T, (levels,): mean steps of a visit.
    """

    overflow: Array
    visits: Array
    stay: Array

    @property
    def duration(self) -> float:
        """Sum of nu T: mean steps from one arrival to the next."""
        return float(self.visits @ self.stay)

    @property
    def levels(self) -> Array:
        """Share of steps spent at each level, (levels,)."""
        return self.visits * self.stay / self.duration

    @property
    def clean(self) -> Array:
        """Share of the finite steps spent at each level, (levels,)."""
        clean = self.levels * (1 - self.overflow)
        return np.asarray(clean / clean.sum())

    @property
    def skip_rate(self) -> float:
        """Skipped steps over steps; 1 / (2 sum nu T) if b = a and neither bound is ever reached."""
        return float(self.levels @ self.overflow)

    def at(self, count: int) -> Array:
        """Return the share of steps at each level with this count, below the growth interval,
        (levels,).
        """
        # (T3.2) pi(j, c) = nu_j (1 - p_j)^c / (sum nu T)
        return np.asarray(self.visits * (1 - self.overflow) ** count / self.duration)


def stationary(
    overflow: npt.ArrayLike, growth_interval: int, backoff_levels: int = 1
) -> Stationary:
    """Return T3, the scale under independent, identically distributed thresholds. Exact.

    Given a level, each visit to it is G independent trials, so the arrivals form a walk that goes
    up one level with probability q and down m otherwise; its flows across any cut between two
    levels balance.

    Args:
        overflow: (levels,), p_j = P(threshold < x_0 + j a), not decreasing. The lowest level is
            ``min_scale``, the highest ``max_scale``; with p = 0 below and p = 1 above, neither
            bound is reached.
        growth_interval: G.
        backoff_levels: m = b / a, a whole number.
    """
    p = np.asarray(overflow, dtype=np.float64)
    if (
        p.ndim != 1
        or not p.size
        or p.min() < 0
        or p.max() > 1
        or (np.diff(p) < 0).any()
    ):
        raise ValueError(
            f"overflow={p}: expected probabilities that do not decrease from level to level"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        # q_j = (1 - p_j)^G;  T_j = 1 + (1 - p_j) + ... + (1 - p_j)^(G - 1) = (1 - q_j) / p_j, and G
        # where p_j = 0
        log_up = growth_interval * np.log1p(-p)
        log_down = np.log(-np.expm1(log_up))
        stay = np.where(p > 0, -np.expm1(log_up) / p, growth_interval)
    # (T3.1) nu_j q_j = sum over i = j + 1 .. j + m of nu_i (1 - q_i), from the highest level that
    # is ever reached down
    top = (
        int(np.argmax(np.isneginf(log_up))) if np.isneginf(log_up).any() else len(p) - 1
    )
    log_visits = np.full(len(p), -np.inf)
    log_visits[top] = 0.0
    for j in range(top - 1, -1, -1):
        above = slice(j + 1, min(j + backoff_levels, top) + 1)
        log_visits[j] = (
            np.logaddexp.reduce(log_visits[above] + log_down[above]) - log_up[j]
        )
    visits = np.exp(log_visits - log_visits.max())
    visits /= visits.sum()
    return Stationary(p, visits, stay)


def normal_thresholds(mean: float, sigma: float) -> tuple[Array, Array]:
    """Return (x, p): whole log2 scales, and the chance to overflow there if log2 of the threshold
    is normal(mean, sigma).

    Levels reach from where p is the smallest float to where it is 1, so T3's bounds are never
    reached.
    """
    x = np.arange(
        math.floor(mean - 38 * sigma), math.ceil(mean + 9 * sigma) + 1, dtype=np.float64
    )
    # Phi((x - mean) / sigma); statistics.NormalDist has no digits left below -8 sigma
    return x, np.array([math.erfc((mean - j) / sigma / math.sqrt(2)) / 2 for j in x])


def of_thresholds(
    thresholds: Mapping[int, int], growth_interval: int
) -> tuple[Array, Stationary]:
    """Return T3 with the empirical distribution of observed thresholds and torch's factors, from
    powers of two.

    Args:
        thresholds: of each k, how many steps had the threshold 2^k: the largest scale at which they
            did not overflow.
        growth_interval: G.

    Returns:
        log2 of the scale at each level, from where none of the steps overflowed to where all did,
        and T3 there.
    """
    x = np.arange(min(thresholds), max(thresholds) + 2)
    counts = np.array([0, *(thresholds.get(int(k), 0) for k in x[:-1])])
    return x.astype(np.float64), stationary(
        counts.cumsum() / counts.sum(), growth_interval
    )


def tracked_quantile(growth_interval: int, ranks: int = 1, rho: float = 1.0) -> float:
    """Return T3 b, the quantile of max|gradient| whose inverse the scale tracks; about 1 - ln(1 +
    rho) / (N G).

    It is where a visit moves the scale neither way in the mean. For rho = a / b = 1 a visit is
    there as likely to end in a growth as in an overflow, and the commonest arrivals are within one
    level. `ranks` N data-parallel workers with independent gradients share one scale. Known of
    staircases in psychophysics: G-down-1-up with equal steps (Levitt 1971, 10.1121/1.1912375), with
    unequal ones for G = 1 (Kaernbach 1991, 10.3758/BF03214307).
    """
    # (T3.4) a q = b (1 - q),  q = (1 - p)^(N G):  1 - p = (1 + rho)^(-1 / (N G))
    return math.exp(-math.log1p(rho) / (ranks * growth_interval))


# -------------------------------------------------------------- T8: steps that are bad at any scale


def critical_bad_rate(rule: Rule) -> float:
    """Return T8, the critical rate of independent steps that overflow at every scale (NaN batches,
    fp16 forwards).

    Without ``min_scale`` the scale is stable if and only if lambda is below this; at it and above
    it falls to 0. Exact; about ln(1 + rho) / G, and ln 2 / G for torch's factors: one bad step in
    2885.
    """
    a, b = bits(rule)
    # (T8.1) a q - b (1 - q) = 0,  q = (1 - lambda)^G:  lambda_c = 1 - (1 + rho)^(-1/G), one less
    # (T3.4)
    return -math.expm1(-math.log1p(a / b) / rule.growth_interval)


def bad_step_drift(rule: Rule, rate: float) -> float:
    """Return T8, the bits per step that a scale far below its threshold moves; negative above the
    critical one. Exact.
    """
    a, b = bits(rule)
    # (T8.2) lambda (a q - b (1 - q)) / (1 - q)
    up, down = _bad_visit(rule.growth_interval, rate)
    return rate * (a * up - b * down) / down


def bad_step_skip_rate(growth_interval: int, rate: float) -> float:
    """Return T8, the skip rate under a constant threshold and bad steps below the critical rate, a
    = b. Exact.
    """
    # (T8.3) r = lambda q / (1 - q + lambda (2 q - 1)), which is 1 / (G + 1) at lambda -> 0
    up, down = _bad_visit(growth_interval, rate)
    return rate * up / (down + rate * (up - down))


def bad_step_headroom(growth_interval: int, rate: float) -> float:
    """Return T8, the levels that bad steps cost on top of T2's headroom, a = b. Exact; inf if
    unstable.
    """
    # (T8.4) (1 - q) / (2 q - 1)
    up, down = _bad_visit(growth_interval, rate)
    return down / (up - down) if up > down else math.inf


def best_interval(rate: float, price: float) -> int:
    """Return T8, the G of least skip rate + `price` (of a level of headroom, in skipped steps per
    step), a = b = 1.

    Found by search, below ln 2 / lambda; about 1 / sqrt(price lambda) while lambda G << 1.
    """

    def cost(growth_interval: int) -> float:
        return bad_step_skip_rate(growth_interval, rate) + price * bad_step_headroom(
            growth_interval, rate
        )

    return min(
        range(1, math.ceil(math.log(0.5) / math.log1p(-rate))), key=cost, default=1
    )


def _bad_visit(growth_interval: int, rate: float) -> tuple[float, float]:
    """Return (q, 1 - q): a visit to a level ends in a growth, or in a bad step."""
    log_up = growth_interval * math.log1p(-rate)
    return math.exp(log_up), -math.expm1(log_up)


# ------------------------------------------------------------------------------------ T9: the range


def flushed_share(
    sigma: float, score: float, headroom: float = 0.0, binades: float = FP16_BINADES
) -> float:
    """Return T9, the share of gradient elements that underflow in a backward pass in fp16.

    Elements are log-normal, log2|g| of standard deviation `sigma`, and the scale puts the element
    of standard score `score` `headroom` bits below overflow: Phi^-1(1 - 1/n) for the largest of n
    elements (a convention; the largest itself is random), Phi^-1(2^(-1/(n G))) for a dynamic scale
    (T3 b with n independent elements as ranks). Exact for that scale, for elements rounded once:
    underflow inside the backward pass is not counted.
    """
    # (T9.1) Phi((l - R) / sigma + z)
    return _normal.cdf((headroom - binades) / sigma + score)


def widest_spread(
    score: float, share: float, headroom: float = 0.0, binades: float = FP16_BINADES
) -> float:
    """Return T9, the largest sigma, in bits, at which one scale flushes at most `share` of the
    elements.
    """
    # (T9.2) sigma <= (R - l) / (z + z_share)
    return (binades - headroom) / (score - _normal.inv_cdf(share))
