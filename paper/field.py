"""The field's scalers side by side: what each dialect does at the places where they differ, by asking the machine."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampsim.core import dialects
from ampsim.core.formats import FP32
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states


@dataclass(frozen=True)
class Behaviour:
    """The course that two scalers share when they differ in their defaults alone."""

    grows_at: (
        int  # with a growth interval of 3: the clean step after a backoff at which the scale grows
    )
    refill: str  # what refills the patience with overflows; empty where a backoff takes one
    delay: int  # updates between a step and the first that uses its verdict
    top: str  # what a growth at every step comes to, from just below the end of float32
    bottom: str  # what overflow after overflow comes to, from the default scale


@functools.cache
def survey() -> dict[str, Behaviour]:
    """Return what each dialect does, in the order of their names."""
    return {name: _behaviour(name) for name in dialects.names()}


def overflows_until(rule: Rule, low: float) -> int:
    """Return how many overflows in a row take the scale from its start down to `low`."""
    return 1 + next(i for i, scale in enumerate(_scales(rule, [True] * 1200)) if scale <= low)


def _behaviour(name: str) -> Behaviour:
    rule, dialect = dialects.get(name), dialects.ALL[name]
    is_patient = "hysteresis" in dialect.parameters.values() or "hysteresis" in dialect.options
    return Behaviour(
        grows_at=_first_growth(name),
        refill=" or ".join(sorted(rule.hysteresis_reset)) if is_patient else "",
        delay=rule.delay,
        top=_top(rule),
        bottom=_bottom(rule),
    )


def _first_growth(name: str) -> int:
    known = {*dialects.ALL[name].parameters, *dialects.ALL[name].options}
    wanted = {"init_scale": 1024.0, "growth_interval": 3}
    rule = dialects.get(name, **{key: value for key, value in wanted.items() if key in known})
    *_, low = _scales(rule, [True] * rule.hysteresis)
    after = list(_scales(rule, [True] * rule.hysteresis + [False] * 9))[rule.hysteresis :]
    return 1 + next(i for i, scale in enumerate(after) if scale > low)


def _top(rule: Rule) -> str:
    start = rule.replace(init_scale=2.0**126, growth_factor=2.0, growth_interval=1)
    *_, last = _scales(start, [False] * 9)
    if last < 2.0**126:
        return "its cap"
    return {math.inf: "infinite", FP32.max_finite: "saturates", 2.0**127: "refuses"}.get(
        last, "goes on"
    )


def _bottom(rule: Rule) -> str:
    try:
        *_, last = _scales(rule, [True] * 1200)  # beyond the smallest double
    except Exception:  # the dialect's own, of any type
        return "raises"
    return "zero" if last == 0.0 else "floor"


def _scales(rule: Rule, found_inf: Sequence[bool]) -> Iterator[float]:
    return (state.newest for state in states(rule, found_inf))
