"""The field's scalers side by side: what each dialect does at the places where they differ, by asking the machine."""

import functools
import math
from collections.abc import Iterator
from typing import Any

from ampsim.core import dialects
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states

FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


@functools.cache
def survey() -> tuple[dict[str, Any], ...]:
    """One row a dialect, in the order of their names."""
    return tuple(_row(name) for name in dialects.names())


def _row(name: str) -> dict[str, Any]:
    rule = dialects.get(name)
    row = {
        "start": rule.init_scale,
        "interval": rule.growth_interval,
        "grows_at": _first_growth(name),
        "patience": rule.hysteresis,
        "refill": " or ".join(sorted(rule.hysteresis_refill)) if _is_patient(name) else "",
        "delay": rule.delay,
        "top": _top(rule),
        "bottom": _bottom(rule),
    }
    behaviour = "|".join(str(row[key]) for key in ("grows_at", "refill", "delay", "top", "bottom"))
    return {"system": name, "source": dialects.ALL[name].source, **row, "behaviour": behaviour}


def _is_patient(name: str) -> bool:
    """Whether a backoff may take more than one overflow."""
    dialect = dialects.ALL[name]
    return "hysteresis" in dialect.parameters.values() or "hysteresis" in dialect.options


def _given(name: str, **wanted: Any) -> Rule:
    """The dialect with those of these parameters that it has."""
    known = {*dialects.ALL[name].parameters, *dialects.ALL[name].options}
    return dialects.get(name, **{key: value for key, value in wanted.items() if key in known})


def _scales(rule: Rule, found_inf: list[bool]) -> Iterator[float]:
    for state in states(rule, found_inf):
        yield state.newest


def _first_growth(name: str) -> int:
    """With a growth interval of 3: at which clean step after a backoff the scale grows."""
    rule = _given(name, init=1024.0, interval=3)
    *_, low = _scales(rule, [True] * rule.hysteresis)
    after = list(_scales(rule, [True] * rule.hysteresis + [False] * 9))[rule.hysteresis :]
    return 1 + next(i for i, scale in enumerate(after) if scale > low)


def _top(rule: Rule) -> str:
    """What a growth at every step comes to, from just below the end of float32."""
    start = rule.replace(init_scale=2.0**126, growth_factor=2.0, growth_interval=1)
    last = list(_scales(start, [False] * 9))[-1]
    if last < 2.0**126:
        return "its cap"
    return {math.inf: "infinite", FLOAT32_MAX: "saturates", 2.0**127: "refuses"}.get(last, "goes on")


def _bottom(rule: Rule) -> str:
    """What overflow after overflow comes to, from the default scale."""
    try:
        *_, last = _scales(rule, [True] * 1200)  # beyond the smallest double
    except Exception:  # the dialect's own, of any type
        return "raises"
    return "zero" if last == 0.0 else "floor"


def overflows_until(rule: Rule, low: float) -> int:
    """How many overflows in a row take the scale from its start down to `low`."""
    return 1 + next(i for i, scale in enumerate(_scales(rule, [True] * 1200)) if scale <= low)
