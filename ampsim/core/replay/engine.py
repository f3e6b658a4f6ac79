"""The plain machine from event to event: the loop below `ampsim.core.replay.thresholds`, compiled
where numba is.

Between two events nothing happens but counting, so the next one is known: the growth that is due, a
delayed scale that comes into force, or the first step whose threshold lies below the scale. That
step is looked up in the minima of blocks of steps, so a replay costs events, not steps.

The functions are one source for two engines: Python runs them, or numba compiles them. Only
`_first_below` and `block_minima` exist twice, as numpy's scan for Python and as a loop for the
compiler.
"""

import math
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ampsim.core.machine import Rule

Array = npt.NDArray[Any]  # of what a trace holds; numba compiles a loop for each
NEVER = 2**62  # steps


class Constants(NamedTuple):
    """A rule without quirks as numbers, rounded where the machine rounds them."""

    growth: float
    backoff: float
    divides: bool  # scale / backoff instead of scale * backoff
    low: float
    high: float
    single: bool  # the scale is held in float32
    least: float  # a result below it becomes 0
    keeps_finite: bool
    interval: int
    at_least: bool  # growth_test is ">="
    hysteresis: int
    reset_clean: bool  # these three: which events reset the hysteresis
    reset_growth: bool
    reset_backoff: bool
    delay: int


class Carry(NamedTuple):
    """A run's position between two calls of `run`."""

    step: int  # updates done
    scale: float  # current
    newest: float
    growth_tracker: int
    overflows: int  # let pass without a backoff
    skips: int  # entries of `skipped`
    logged: int  # entries of `steps` and `scales`
    applied: int  # number of scales already used


@lru_cache
def constants(rule: Rule) -> Constants:
    """Return what `run` needs to know of a rule."""
    held = rule.arithmetic
    reset = rule.hysteresis_reset
    factor = held.round if held.round_factors else float
    backoff = factor(
        rule.backoff_factor if held.backoff == "multiply" else rule.growth_factor
    )
    return Constants(
        growth=factor(rule.growth_factor),
        backoff=held.round(1.0 / backoff) if held.backoff == "reciprocal" else backoff,
        divides=held.backoff == "divide",
        low=-math.inf if rule.min_scale is None else held.round(rule.min_scale),
        high=math.inf if rule.max_scale is None else held.round(rule.max_scale),
        single=held.dtype == "float32",
        least=held.least,
        keeps_finite=bool(held.keeps_finite),
        interval=min(int(rule.growth_interval), NEVER),
        at_least=rule.growth_test == ">=",
        hysteresis=min(int(rule.hysteresis), NEVER),
        reset_clean="clean" in reset,
        reset_growth="growth" in reset,
        reset_backoff="backoff" in reset,
        delay=min(int(rule.delay), NEVER),
    )


def run(
    thresholds: Array,
    minima: Array,
    bits: int,
    c: Constants,
    carry: Carry,
    skipped: Array,
    steps: Array,
    scales: Array,
) -> Carry:
    """Run to the end of the trace, or until `skipped` or the log of scales is full.

    The log says after which update (`steps`) which of `scales` comes into force. It begins with
    what ``carry`` has logged before; a change of the newest scale is appended.
    """
    t, scale, newest, growth_tracker, overflows, skips, logged, applied = carry
    while t < len(thresholds) and skips < len(skipped) and logged < len(steps):
        wait = _until_growth(growth_tracker, c)
        stop = min(len(thresholds), t + wait)
        if applied < logged:
            stop = min(stop, steps[applied] + 1)
        hit = _next_below(thresholds, minima, bits, scale, t, stop)
        before = newest
        clean = hit - t
        t = hit
        growth_tracker += clean
        if c.reset_clean and clean > 0:
            overflows = 0
        if hit < stop:
            newest, overflows = _back_off(newest, overflows, c)
            skipped[skips] = hit
            growth_tracker = 0
            skips += 1
            t = hit + 1
        elif clean == wait:
            newest, overflows = _grow(newest, overflows, c)
            growth_tracker = 0
        if differ(before, newest):
            steps[logged] = t - 1 + c.delay
            scales[logged] = newest
            logged += 1
        while applied < logged and steps[applied] < t:
            scale = scales[applied]
            applied += 1
    return Carry(t, scale, newest, growth_tracker, overflows, skips, logged, applied)


def differ(a: float, b: float) -> bool:
    """Return whether two scales differ; NaN equals NaN."""
    return a != b and not (math.isnan(a) and math.isnan(b))


def _until_growth(growth_tracker: int, c: Constants) -> int:
    """Return the number of finite steps up to and including the next growth."""
    if growth_tracker < c.interval:
        return c.interval - growth_tracker
    return 1 if c.at_least else NEVER


def _back_off(scale: float, overflows: int, c: Constants) -> tuple[float, int]:
    """Return the newest scale and the overflows let pass, after an overflow."""
    if overflows + 1 < c.hysteresis:
        return scale, overflows + 1
    lowered = _held(scale / c.backoff if c.divides else scale * c.backoff, c)
    return (c.low if c.low > lowered else lowered), (
        0 if c.reset_backoff else overflows
    )


def _grow(scale: float, overflows: int, c: Constants) -> tuple[float, int]:
    """Return the newest scale and the overflows let pass, after a growth."""
    grown = _held(scale * c.growth, c)
    grown = c.high if c.high < grown else grown
    refused = c.keeps_finite and not math.isfinite(grown)
    return (scale if refused else grown), (0 if c.reset_growth else overflows)


def _held(x: float, c: Constants) -> float:
    """Return `x` in the format that holds the scale."""
    held = np.float64(np.float32(x)) if c.single else np.float64(x)
    return 0.0 if held < c.least else held


def _next_below(
    thresholds: Array, minima: Array, bits: int, scale: float, start: int, stop: int
) -> int:
    """Return the first step of [start, stop) whose threshold is below the scale, or `stop`; a
    block has 2**bits steps.
    """
    block = start >> bits
    last = ((stop - 1) >> bits) + 1
    while True:
        block = _first_below(minima, scale, block, last)
        if block == last:
            return stop
        edge = min(stop, (block + 1) << bits)
        step = _first_below(thresholds, scale, max(start, block << bits), edge)
        if step < edge:
            return step
        block += 1  # its minimum is not within [start, stop)


def _first_below(values: Array, scale: float, start: int, stop: int) -> int:
    while start < stop:
        edge = min(stop, start + 4096)
        # A Python float would be rounded to float32.
        below = values[start:edge] < np.float64(scale)
        first = int(below.argmax())
        if below[first]:
            return start + first
        start = edge
    return stop


def _compiled_first_below(values: Array, scale: float, start: int, stop: int) -> int:
    # Unsigned, so that numba compiles no test for an index from the end.
    i = np.uint64(start)
    end = np.uint64(stop)
    while i < end and not values[i] < scale:
        i += np.uint64(1)
    return int(np.int64(i))  # numba: int64 + uint64 is float64


def block_minima(values: Array, block: int, out: Array) -> tuple[int, int]:
    """Write the least of each `block` values to `out`; return the least and the largest of all.

    `values` are the bits of floats as signed integers. For floats >= 0 they have the floats' order,
    a NaN is above inf, and what has a sign is below 0.
    """
    whole = len(values) // block
    values[: whole * block].reshape(whole, block).min(axis=1, out=out[:whole])
    if whole < len(out):
        out[-1] = values[whole * block :].min()
    return int(out.min()), int(values.max())


def _compiled_block_minima(values: Array, block: int, out: Array) -> tuple[int, int]:
    size = np.uint64(block)
    end = np.uint64(len(values))
    lowest = highest = values[0]
    for b in range(np.uint64(len(out))):
        least = most = values[b * size]
        for i in range(b * size, min(end, (b + np.uint64(1)) * size)):
            least = min(least, values[i])
            most = max(most, values[i])
        out[b] = least
        lowest = min(lowest, least)
        highest = max(highest, most)
    return lowest, highest


class Engine(NamedTuple):
    """One way to run the loop."""

    run: Callable[..., Carry]
    block_minima: Callable[[Array, int, Array], tuple[int, int]]


PYTHON = Engine(
    np.errstate(over="ignore", under="ignore", invalid="ignore")(run), block_minima
)
_LOOP = (
    "run",
    "differ",
    "_until_growth",
    "_back_off",
    "_grow",
    "_held",
    "_next_below",
    "_first_below",
    "block_minima",
)


@cache
def compiled() -> Engine:
    """Return the loop through numba, compiled when a kind of array first meets it and then kept on
    the disk.
    """
    space = dict(globals())
    for name in _LOOP:
        source = space.get(f"_compiled_{name.lstrip('_')}", space[name])
        space[name] = _jit(FunctionType(source.__code__, space))
    return Engine(space["run"], space["block_minima"])


def _jit(function: FunctionType) -> Callable[..., Any]:
    from numba import njit

    try:
        return njit(function, cache=True)
    except RuntimeError:  # no folder that it may write to
        return njit(function)


@cache
def fastest() -> Engine:
    """Return the compiled engine where numba is installed (``pip install numba``), else Python's."""
    return compiled() if find_spec("numba") else PYTHON
