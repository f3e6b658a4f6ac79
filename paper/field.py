"""Compare what the state machine does in each dialect, where dialects differ."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampsim.core import dialects
from ampsim.core.formats import FP32
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states


@dataclass(frozen=True)
class Behavior:
    """Behavior that two scalers share if they differ only in their defaults."""

    grows_at: int  # the finite step after a backoff at which the scale grows; growth interval 3
    reset: str  # what resets the hysteresis; empty if the framework has none
    delay: int  # updates between a step and the first step that uses its result
    top: str  # result of a growth at every step, from just below the end of float32
    bottom: str  # result of overflow after overflow, from the default scale


@functools.cache
def survey() -> dict[str, Behavior]:
    """Return what each dialect does, in the order of their names."""
    return {name: _behaviour(name) for name in dialects.names()}


def overflows_until(rule: Rule, low: float) -> int:
    """Return how many overflows in a row take the scale from its start down to `low`."""
    return 1 + next(
        i for i, scale in enumerate(_scales(rule, [True] * 1200)) if scale <= low
    )


def _behaviour(name: str) -> Behavior:
    rule, dialect = dialects.get(name), dialects.ALL[name]
    has_hysteresis = (
        "hysteresis" in dialect.parameters.values() or "hysteresis" in dialect.options
    )
    resets = sorted(
        "finite step" if name == "clean" else name for name in rule.hysteresis_reset
    )
    return Behavior(
        grows_at=_first_growth(name),
        reset=" or ".join(resets) if has_hysteresis else "",
        delay=rule.delay,
        top=_top(rule),
        bottom=_bottom(rule),
    )


def _first_growth(name: str) -> int:
    known = {*dialects.ALL[name].parameters, *dialects.ALL[name].options}
    wanted = {"init_scale": 1024.0, "growth_interval": 3}
    rule = dialects.get(
        name, **{key: value for key, value in wanted.items() if key in known}
    )
    *_, low = _scales(rule, [True] * rule.hysteresis)
    after = list(_scales(rule, [True] * rule.hysteresis + [False] * 9))[
        rule.hysteresis :
    ]
    return 1 + next(i for i, scale in enumerate(after) if scale > low)


def _top(rule: Rule) -> str:
    start = rule.replace(init_scale=2.0**126, growth_factor=2.0, growth_interval=1)
    *_, last = _scales(start, [False] * 9)
    if last < 2.0**126:
        return "upper bound"
    return {math.inf: "infinite", FP32.max_finite: "saturates", 2.0**127: "stops"}.get(
        last, "continues"
    )


def _bottom(rule: Rule) -> str:
    try:
        *_, last = _scales(rule, [True] * 1200)  # beyond the smallest double
    except Exception:  # the dialect's own, of any type
        return "raises"
    return "zero" if last == 0.0 else "lower bound"


def _scales(rule: Rule, found_inf: Sequence[bool]) -> Iterator[float]:
    return (state.newest for state in states(rule, found_inf))
