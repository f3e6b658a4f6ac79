"""Properties of loss scalers: named predicates over observed runs.

A property reads the rule and the observed scales and does not call the state machine. State machine
and properties were written independently, so that each tests the other. The name of a property is
its test id, the first word of a message of the conformance suite, and the key of an expected
failure.

`UPDATE_PROPERTIES` cover one update, `HISTORY_PROPERTIES` a whole run.
`ampsim.testing.scaler_checks` covers the steps. A property returns None if it holds or does not
apply, else a sentence with the observed values.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ampsim.core.machine import Rule

FLOAT32_ULP = (
    2.0**-23
)  # spacing of float32 above 1: one rounding moves a product by less than this
_SUBNORMAL = 2.0**-149  # spacing of float32 below its smallest normal number
_TOP = 2.0**128 * (1 - 2.0**-25)  # from here on a number rounds to inf in float32


@dataclass(frozen=True)
class Update:
    """An observed update of a scaler without delay."""

    rule: Rule
    found_inf: bool
    scale: float  # before the update
    new_scale: float  # after it
    growth_tracker: (
        int  # finite steps since the last overflow or growth, before the update
    )


@dataclass(frozen=True)
class History:
    """An observed run of a scaler without delay."""

    rule: Rule
    found_inf: Sequence[bool]
    scale: Sequence[
        float
    ]  # before the first update, then after each: len(found_inf) + 1 of them


def _close(a: float, b: float) -> bool:
    """Return whether a and b are equal up to rounding of one float32 product and factor."""
    return (
        a == b
        or abs(a - b) <= 2 * FLOAT32_ULP * max(abs(a), abs(b))
        or max(abs(a), abs(b)) < 2.0**-125
    )


def _at_top(u: Update) -> bool:
    """Return whether a growth would exceed float32 or max_scale."""
    grown = u.scale * u.rule.growth_factor
    return grown > (u.rule.max_scale or math.inf) or grown >= _TOP


# ------------------------------------------------------------------------------------------------
# one update


def overflow_backs_off_once(u: Update) -> str | None:
    """An overflow multiplies the scale by the backoff factor once, and min_scale bounds the result.

    With hysteresis, an overflow may also keep the scale.
    """
    if not u.found_inf or (u.rule.hysteresis > 1 and u.new_scale == u.scale):
        return None
    expected = max(u.scale * u.rule.backoff_factor, u.rule.min_scale or 0.0)
    return (
        None
        if _close(u.new_scale, expected)
        else f"{u.scale} -> {u.new_scale}, expected {expected}"
    )


def finite_step_never_lowers_scale(u: Update) -> str | None:
    """A finite step does not lower the scale."""
    return (
        f"{u.scale} -> {u.new_scale}"
        if not u.found_inf and u.new_scale < u.scale
        else None
    )


def growth_waits_for_interval(u: Update) -> str | None:
    """The scale grows exactly at the finite step that completes the interval."""
    if u.found_inf:
        return None
    due, grew = u.growth_tracker + 1 == u.rule.growth_interval, u.new_scale > u.scale
    if grew and not due:
        return f"grew after {u.growth_tracker + 1} finite steps, interval {u.rule.growth_interval}"
    if (
        due
        and not grew
        and u.rule.growth_factor > 1.0 + 2 * FLOAT32_ULP
        and not _at_top(u)
        and u.scale * (u.rule.growth_factor - 1.0)
        >= _SUBNORMAL  # else it may round to nothing
    ):
        return f"did not grow after {u.growth_tracker + 1} finite steps, interval {u.rule.growth_interval}"
    return None


def growth_multiplies_by_factor(u: Update) -> str | None:
    """A growth multiplies the scale by the growth factor once; max_scale or float32 bounds the
    result.
    """
    expected = min(u.scale * u.rule.growth_factor, u.rule.max_scale or math.inf)
    if (
        u.found_inf or u.new_scale <= u.scale or expected >= _TOP
    ):  # beyond float32 scalers keep the scale, or clamp it
        return None
    return (
        None
        if _close(u.new_scale, expected)
        else f"{u.scale} -> {u.new_scale}, expected {expected}"
    )


def scale_is_never_infinite(u: Update) -> str | None:
    """The scale is never inf or NaN."""
    return None if math.isfinite(u.new_scale) else f"{u.scale} -> {u.new_scale}"


def scale_stays_within_bounds(u: Update) -> str | None:
    """A scale within [min_scale, max_scale] stays within these bounds."""
    low, high = u.rule.min_scale or 0.0, u.rule.max_scale or math.inf
    left = low <= u.scale <= high and not low <= u.new_scale <= high
    return f"{u.scale} -> {u.new_scale}, bounds [{low}, {high}]" if left else None


# -------------------------------------------------------------------------------------------------
# whole runs


def skips_stay_within_budget(h: History) -> str | None:
    """T1: skips <= (rho n + G B) / (G + rho), for any overflow sequence, even an adversarial one.

    n updates, G the growth interval, rho = log(growth) / log(1/backoff), and B = log(S_0 / S_n) /
    log(1/backoff) the backoffs that the scale's net descent pays for. Each skip costs one backoff
    and each growth earns rho of them back, and growths <= (n - skips) / G. At min_scale an overflow
    does not lower the scale, so the property does not apply to runs that reach min_scale.
    """
    rule, n = h.rule, len(h.found_inf)
    reached_min = rule.min_scale is not None and min(h.scale) <= rule.min_scale
    lost_bits = min(h.scale) < 2.0**-120 or not all(map(math.isfinite, h.scale))
    if rule.hysteresis > 1 or rule.backoff_factor == 1 or reached_min or lost_bits:
        return None
    bits = -math.log2(rule.backoff_factor)
    rho = math.log2(rule.growth_factor) / bits
    descent = math.log2(h.scale[0] / h.scale[-1]) / bits
    budget = (rho * n + rule.growth_interval * descent) / (rule.growth_interval + rho)
    skips = sum(map(bool, h.found_inf))
    slack = 1e-9 + 4 * FLOAT32_ULP * n / bits  # each update rounds the scale once
    return (
        None
        if skips <= budget + slack
        else f"{skips} skips in {n} updates, budget {budget:.6g}"
    )


UPDATE_PROPERTIES: tuple[Callable[[Update], str | None], ...] = (
    overflow_backs_off_once,
    finite_step_never_lowers_scale,
    growth_waits_for_interval,
    growth_multiplies_by_factor,
    scale_is_never_infinite,
    scale_stays_within_bounds,
)
HISTORY_PROPERTIES: tuple[Callable[[History], str | None], ...] = (
    skips_stay_within_budget,
)


def updates(history: History) -> Iterator[Update]:
    """Yield the updates of a run, with the growth tracker that its overflows and finite steps lead
    to.
    """
    tracker = 0
    for found_inf, (before, after) in zip(
        history.found_inf, pairwise(history.scale), strict=False
    ):
        yield Update(history.rule, bool(found_inf), before, after, tracker)
        is_reset = found_inf or tracker + 1 == history.rule.growth_interval
        tracker = 0 if is_reset else tracker + 1
