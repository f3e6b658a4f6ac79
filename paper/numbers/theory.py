"""The theorems, and the real runs that T3 predicts."""

from collections.abc import Callable
from functools import partial

from ampsim.core import theory
from ampsim.core.machine import Rule
from figures.derived_numbers import (
    INTERVALS,
    order_effect,
    real_level,
    real_rate,
    t3_level,
    t3_rate,
)
from figures.results import Result
from paper import sources
from paper.values import Formula, Number

NEW_SEEDS = "theory_real@cpu-new-seeds"
BOTH = ("theory_real", NEW_SEEDS)
real = partial(Number, "theory_real")
new = partial(Number, NEW_SEEDS)


def worst_level(run: Result) -> float:
    """Return by how many bits the mean scale is off at the worst interval."""
    return max(abs(real_level(run, g) - t3_level(run, g, f"G={g}")) for g in INTERVALS)


def order_bits(run: Result) -> list[float]:
    """Return by how many bits the order of the thresholds raises the mean scale, per interval."""
    return [order_effect(run, g).bits for g in INTERVALS]


def order_off(run: Result) -> float:
    """Return by how many bits the effect of the order is off the excess over T3, at the worst
    interval.
    """
    excess = [real_level(run, g) - t3_level(run, g, f"G={g}") for g in INTERVALS]
    return max(abs(a - b) for a, b in zip(order_bits(run), excess, strict=True))


def worst_rate(run: Result) -> float:
    """Return by which share of T3's skip rate the measured one is off at the worst interval."""
    return max(
        abs(real_rate(run, g) / t3_rate(run, g, f"G={g}") - 1) for g in INTERVALS
    )


def on_both(largest: Callable[[Result], float], form: str) -> Formula:
    """Return the larger number of the seeds that the text is about and of new ones."""
    return Formula(lambda: max(largest(sources.load(stem)) for stem in BOTH), form)


NUMBERS: dict[str, Number | Formula] = {
    "t1.default.in": Formula(lambda: 1 / theory.skip_rate(Rule()), ".0f"),
    "t3.quantile": Formula(lambda: theory.tracked_quantile(2000), "%3"),
    "t4.steps": Formula(lambda: theory.recovery(Rule(), 10, 10).steps, ",d"),
    "t8.critical.in": Formula(lambda: 1 / theory.critical_bad_rate(Rule()), ",.0f"),
    "real.level.both": on_both(worst_level, "<=.2f"),
    "real.rate.both": on_both(worst_rate, "<=%0"),
    "real.order.min": real(lambda run: min(order_bits(run)), ">=.2f"),
    "real.order.max": real(lambda run: max(order_bits(run)), "<=.2f"),
    "real.order.excess": on_both(order_off, "<=.3f"),
}
