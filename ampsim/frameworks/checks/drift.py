"""Comparison of a dialect with the framework's package on random overflow sequences, to the last
bit.

Each sequence has one setting of the constants. Gradients are zeros, or inf if the flag is true, so
the size of a gradient does not matter here; the checks cover it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampsim.core.machine import Rule
from ampsim.core.machine import init as first_state
from ampsim.core.replay.fold import states
from ampsim.frameworks.adapter import Adapter
from ampsim.frameworks.checks.subject import (
    FACTORS,
    RefusedError,
    UnaskableError,
    dialect_rule,
    rule_fields,
    start_arguments,
)

HISTORIES = 2000
# histories: where a setting is compiled, that costs more than all of its histories
PER_SETTING = 50
GRID: Mapping[str, Sequence[Any]] = {  # field of `Rule` -> what is drawn for it
    "init_scale": (2.0**16, 2.0**10, 1700.0, 3.0, 2.0**125),
    "growth_factor": (2.0, 4.0, 1.5, 3.0),
    "backoff_factor": (0.5, 0.25, 0.7),
    "growth_interval": (1, 2, 3),
    "hysteresis": (1, 2, 3),
    "min_scale": (1.0, 0.25),
}


@dataclass(frozen=True)
class Drift:
    """A comparison of an adapter with its dialect.

    Attributes:
        dialect: Name of the dialect.
        histories: Number of sequences that were run.
        iterations: Number of iterations in them.
        refused: Number of sequences whose constants the adapter or the dialect did not accept.
        differing: Number of sequences in which a scale differs in any bit, or only one of the two
            raises.
        first: Description of the shortest of them; "" if none differs.
    """

    dialect: str
    histories: int
    iterations: int
    refused: int
    differing: int
    first: str


def drift(adapter: Adapter, *, histories: int = HISTORIES, seed: int = 0) -> Drift:
    """Compare an adapter with its dialect on random overflow sequences with a fixed seed."""
    if adapter.dialect is None:
        raise ValueError(f"{adapter.name} has no dialect to compare with")
    draw, differing = random.Random(seed), []  # noqa: S311
    iterations = refused = 0
    for number in range(histories):
        if number % PER_SETTING == 0:
            setting = taken_setting(adapter, draw)
        flags = drawn_flags(draw)
        try:
            used, followed = run(adapter, setting, flags)
        except (UnaskableError, RefusedError):
            refused += 1
            continue
        iterations += len(flags)
        if used != followed:
            differing.append((len(flags), setting, flags, used, followed))
    first = ""
    if differing:
        _, setting, flags, used, followed = min(differing, key=lambda each: each[0])
        shown = "".join("x" if flag else "." for flag in flags)
        first = f"{setting} {shown}: the package {_shown(used)}, the dialect {_shown(followed)}"
    return Drift(adapter.dialect, histories, iterations, refused, len(differing), first)


def taken_setting(adapter: Adapter, draw: random.Random) -> Mapping[str, Any]:
    """Return a setting that the adapter and its dialect accept; after many attempts, any setting."""
    for _ in range(50):
        setting = drawn_setting(adapter, draw)
        try:
            run(adapter, setting, ())
        except (UnaskableError, RefusedError):
            continue
        break
    return setting


def drawn_setting(adapter: Adapter, draw: random.Random) -> Mapping[str, Any]:
    """Return generated fields of `Rule` for the adapter."""
    known = rule_fields(adapter)
    has_one = "factor" in known
    setting = {field: draw.choice(values) for field, values in GRID.items()}
    setting = {
        each: value
        for each, value in setting.items()
        if each in known or (has_one and each in FACTORS)
    }
    if has_one:
        setting["backoff_factor"] = 1 / setting["growth_factor"]
    return setting


def drawn_flags(draw: random.Random) -> list[bool]:
    """Return flags in runs of equal values; uniform flags rarely lead to a growth."""
    flags: list[bool] = []
    for _ in range(draw.randint(1, 6)):
        flags += [draw.random() < 0.4] * draw.randint(1, 3)
    return flags


def run(
    adapter: Adapter, setting: Mapping[str, Any], flags: Sequence[bool]
) -> tuple[list[Any], list[Any]]:
    """Return the scales of an adapter and of its dialect; None for an update that raised."""
    given = start_arguments(adapter, setting)
    if (rule := dialect_rule(adapter, given)) is None:
        raise RefusedError("the dialect does not accept these constants")
    try:
        adapter.start(**given)
    except Exception as error:
        raise RefusedError(str(error)) from error
    used: list[Any] = []
    try:
        used.extend(
            adapter.step((0.0, float("inf") if flag else 0.0)).used for flag in flags
        )
        used.append(adapter.get_scale())
    except Exception:
        used.append(None)
    return used, expected(rule, flags)


def expected(rule: Rule, flags: Sequence[bool]) -> list[Any]:
    """Return the scale before each update and after the last; None for an update that raised."""
    scales: list[Any] = [first_state(rule).scale]
    try:
        scales.extend(state.scale for state in states(rule, flags))
    except Exception:
        scales[-1] = None
    return scales


def _shown(scales: Sequence[Any]) -> str:
    return " ".join("gave up" if each is None else f"{each:.9g}" for each in scales)
