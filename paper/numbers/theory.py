"""The theorems, and the real runs that T3 predicts."""

from collections.abc import Callable
from functools import partial
from math import expm1, hypot, log1p, sqrt

from ampsim.core import theory
from ampsim.core.machine import Rule
from figures.derived_numbers import (
    INTERVALS,
    correlation,
    forecast_error,
    order_effect,
    real_level,
    real_level_z,
    real_rate,
    real_steps,
    real_z,
    skips_above,
    t3_level,
    t3_rate,
)
from figures.results import Result
from paper import sources
from paper.values import Formula, Number

NEW_SEEDS = "theory_real@cpu-new-seeds"
BOTH = ("theory_real", NEW_SEEDS)
Z_ERROR = 0.05  # of a standard deviation that is taken from 200 runs
real = partial(Number, "theory_real")
new = partial(Number, NEW_SEEDS)

RARE = 1e-3  # rate of bad steps of T8's example
BEST = ((1e-5, 0.1), (1e-4, 0.1), (1e-4, 0.01))  # rates of bad steps, prices of a bit
MILLION = 4.753424  # Phi^-1(1 - 1e-6): the largest of a million elements


def ranks_exact() -> float:
    """Return by how many bits 1,024 ranks lower the exact mean level, at sigma 2 and G = 2000."""
    levels, one = theory.normal_thresholds(16.5, 2.0)
    many = [-expm1(1024 * log1p(-p)) if p < 1 else 1.0 for p in one.tolist()]
    means = [theory.stationary(p, 2000).levels @ levels for p in (one, many)]
    return float(means[0] - means[1])


def best_interval_errors() -> list[float]:
    """Return by which share of the best interval T8's closed form is too large, per case."""
    return [1 / sqrt(price * rate) / theory.best_interval(rate, price) - 1 for rate, price in BEST]


def hysteresis_rate(overflows: int) -> float:
    """Return T10's skip rate where so many overflows back off, at G = 50."""
    rule = Rule(growth_interval=50, hysteresis=overflows, hysteresis_reset=frozenset({"growth"}))
    return theory.hysteresis_skip_rate(rule)


def drift(interval: int) -> float:
    """Return T8's bits per step at the rate `RARE`."""
    return theory.bad_step_drift(Rule(growth_interval=interval), RARE)


def worst_z(run: Result) -> float:
    """Return by how many standard deviations the skips are off at the worst interval."""
    return max(abs(real_z(run, g)) for g in INTERVALS)


def worst_z_fp32(run: Result) -> float:
    """Return the same for the prediction from float32 runs."""
    return max(abs(real_z(run, g, "fp32")) for g in INTERVALS)


def worst_level(run: Result) -> float:
    """Return by how many bits the mean scale is off at the worst interval."""
    return max(abs(real_level(run, g) - t3_level(run, g, f"G={g}")) for g in INTERVALS)


def edge_of_two(z: float) -> bool:
    """Return whether a deviation is within two, and past two by as much as `real_z` may be off."""
    return 2 / (1 + Z_ERROR) <= abs(z) <= 2


def level_zs() -> list[float]:
    """Return by how many standard deviations scales lie above T3's, per seeds and interval."""
    return [real_level_z(sources.load(run), g) for run in BOTH for g in INTERVALS]


def correlations() -> list[float]:
    """Return the correlation of successive thresholds of each run, on both sets of seeds."""
    return [correlation(row) for stem in BOTH for row in sources.load(stem).records]


def order_bits(run: Result) -> list[float]:
    """Return by how many bits the order of the thresholds raises the mean scale, per interval."""
    return [order_effect(run, g).bits for g in INTERVALS]


def order_zs(run: Result) -> list[float]:
    """Return the same in standard deviations of shuffled thresholds."""
    effects = [order_effect(run, g) for g in INTERVALS]
    return [effect.bits / effect.deviation for effect in effects]


def order_off(run: Result) -> float:
    """Return by how many bits the effect of the order is off the excess over T3, at the worst interval."""
    excess = [real_level(run, g) - t3_level(run, g, f"G={g}") for g in INTERVALS]
    return max(abs(a - b) for a, b in zip(order_bits(run), excess, strict=True))


def pooled_z(interval: int) -> float:
    """Return by how many standard deviations skips exceed T3's, both sets of seeds together."""
    seeds = [seed for run in BOTH for seed in skips_above(sources.load(run), interval)]
    return sum(more for more, _ in seeds) / hypot(*(deviation for _, deviation in seeds))


def worst_rate(run: Result) -> float:
    """Return by which share of T3's skip rate the measured one is off at the worst interval."""
    return max(abs(real_rate(run, g) / t3_rate(run, g, f"G={g}") - 1) for g in INTERVALS)


def on_both(largest: Callable[[Result], float], form: str) -> Formula:
    """Return the larger number of the seeds that the text is about and of new ones."""
    return Formula(lambda: max(largest(sources.load(stem)) for stem in BOTH), form)


def worst_forecast(run: Result) -> float:
    """Return by which share a forecast of the skips is off at the worst interval."""
    return max(abs(forecast_error(run, g)) for g in INTERVALS)


def unforeseen(run: Result) -> int:
    """Return in how many steps the threshold does not say whether the step overflows."""
    return sum(row["unforeseen"] for row in run.records)


NUMBERS: dict[str, Number | Formula] = {
    "t1.default": Formula(lambda: theory.skip_rate(Rule()), "%5"),
    "t1.default.in": Formula(lambda: 1 / theory.skip_rate(Rule()), ".0f"),
    "t3.quantile": Formula(lambda: theory.tracked_quantile(2000), "%3"),
    "t3.ranks.closed": Formula(lambda: theory.cost_of_ranks(2.0, 2000, 1024), ".2f"),
    "t3.ranks.exact": Formula(ranks_exact, ".2f"),
    "t4.skips": Formula(lambda: theory.recovery(Rule(), 10, 10).skips, "words"),
    "t4.steps": Formula(lambda: theory.recovery(Rule(), 10, 10).steps, ",d"),
    "t8.critical.in": Formula(lambda: 1 / theory.critical_bad_rate(Rule()), ",.0f"),
    "t8.drift.800": Formula(lambda: drift(800), "e2"),
    "t8.drift.2000": Formula(lambda: drift(2000), "e2"),
    "t8.best.min": Formula(lambda: min(best_interval_errors()), ">=%1"),
    "t8.best.max": Formula(lambda: max(best_interval_errors()), "<=%1"),
    "t9.5": Formula(lambda: theory.flushed_share(5.0, MILLION, 0.0), "e1"),
    "t9.8": Formula(lambda: theory.flushed_share(8.0, MILLION, 0.0), "%0"),
    "t10.1": Formula(lambda: hysteresis_rate(1), "%2"),
    "t10.2": Formula(lambda: hysteresis_rate(2), "%2"),
    "real.steps": real(real_steps, ",d"),
    "real.intervals": real(lambda run: len(run.config["growth_intervals"]), "words"),
    "real.levels": Formula(lambda: len(level_zs()), "words"),
    "real.seeds": real(lambda run: len(run.seeds), "words"),
    "real.z": real(worst_z, ".1f"),
    "real.z.both": on_both(worst_z, ".1f"),
    "real.z.fp32": real(worst_z_fp32, ".1f"),
    "real.z.t1": real(lambda run: -max(real_z(run, g, bound=True) for g in INTERVALS), ".0f"),
    "real.prefix": real(lambda run: run.config["prefix"], "d"),
    "real.forecast": real(worst_forecast, "<=%1"),
    "real.level.worst": real(worst_level, "<=.2f"),
    "real.level.both": on_both(worst_level, "<=.2f"),
    "real.level.new": Number(NEW_SEEDS, worst_level, "<=.2f"),
    "real.rate.both": on_both(worst_rate, "<=%0"),
    "real.pooled.interval": Formula(lambda: max(INTERVALS, key=lambda g: abs(pooled_z(g))), "d"),
    "real.pooled": Formula(lambda: -min(map(pooled_z, INTERVALS)), ".1f"),
    "real.level.past": Formula(lambda: sum(abs(z) > 2 for z in level_zs()), "words"),
    "real.level.edge": Formula(lambda: sum(map(edge_of_two, level_zs())), "words"),
    "real.z.fp32.new": new(worst_z_fp32, ".1f"),
    "real.forecast.new": new(worst_forecast, "<=%1"),
    "real.unforeseen.new": new(unforeseen, "words"),
    "real.unforeseen": real(unforeseen, "words"),
    "real.correlation.min": Formula(lambda: min(correlations()), ">=.3f"),
    "real.correlation.max": Formula(lambda: max(correlations()), "<=.3f"),
    "real.order.min": real(lambda run: min(order_bits(run)), ">=.2f"),
    "real.order.max": real(lambda run: max(order_bits(run)), "<=.2f"),
    "real.order.z.min": real(lambda run: min(order_zs(run)), ">=.1f"),
    "real.order.z.max": real(lambda run: max(order_zs(run)), "<=.1f"),
    "real.order.new.min": new(lambda run: min(order_bits(run)), ">=.2f"),
    "real.order.new.max": new(lambda run: max(order_bits(run)), "<=.2f"),
    "real.order.new.clear": new(lambda run: sum(z > 2 for z in order_zs(run)), "words"),
    "real.order.excess": on_both(order_off, "<=.3f"),
    "real.correlation.runs": Formula(lambda: len(correlations()), "d"),
    "real.correlation.errors": Formula(
        lambda: min(correlations()) * sqrt(real_steps(sources.load("theory_real"))), ">=.1f"
    ),
}
