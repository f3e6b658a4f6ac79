"""What a finding is; ``findings.toml`` has its severity, its cause, and what to try, by its id."""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ampsim.runs.read.history import Event, Series

MOST_LINES = 40
"""Lines that a finding names."""


@dataclass(frozen=True)
class Finding:
    """One thing that a log shows of a run.

    Attributes:
        id: Name in kebab case; the same in code, JSON, and text.
        severity: "problem" decides the verdict; "warning" and "info" do not.
        level: "proved" if it is true of each run that could have printed the log, "likely" if an
            expert would say it.
        message: What happened and where, in one or two sentences.
        lines: Lines of the log that show it; of many lines, the first ones.
        step: Step of the first line; NaN if the log does not give it.
        values: Numbers in the message, by name.
        cause: Likely cause; "" if there is nothing to explain.
        actions: What to try, the most promising first.
    """

    id: str
    severity: str
    level: str
    message: str
    lines: tuple[int, ...] = ()
    step: float = math.nan
    values: Mapping[str, float | str] = field(default_factory=dict)
    cause: str = ""
    actions: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it begins, for example "step 90"; "it" if the log does not show it."""
        if math.isfinite(self.step):
            return f"step {self.step:.0f}"
        return f"line {self.lines[0]}" if self.lines else "it"


@cache
def table() -> dict[str, Any]:
    """Return ``findings.toml``: finding -> what is true of each finding of this id."""
    return tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


def make(
    identifier: str,
    message: str,
    lines: Iterable[int] = (),
    step: float = math.nan,
    *,
    severity: str = "",
    level: str = "",
    **values: float | str,
) -> Finding:
    """Return a finding with its row of the table; `severity` and `level` replace those of the row."""
    row, shared = table()[identifier], table()["shared"]
    first = Finding(
        identifier,
        severity or row.get("severity", "problem"),
        level or row.get("level", "likely"),
        message,
        tuple(lines)[:MOST_LINES],
        float(step),
        values,
        row.get("cause", ""),
    )
    known = row.get("actions", ())
    actions = tuple(shared.get(each, each).format(place=first.place) for each in known)
    return Finding(**{**vars(first), "actions": actions})


def at(series: Series, row: int, identifier: str, message: str, **options: Any) -> Finding:
    """Return a finding that begins at a number of a series; see `make` for the options."""
    lines = series.lines[row:][:MOST_LINES].tolist()
    return make(identifier, message, lines, series.steps[row], **options)


def of_events(events: list[Event], identifier: str, message: str, **options: Any) -> Finding:
    """Return a finding that sentences of the log show; see `make` for the options."""
    return make(identifier, message, [event.line for event in events], events[0].step, **options)


def first(function: Callable[[Any], Finding | None], candidates: Iterable[Any]) -> Finding | None:
    """Return the first finding that a function makes of some candidates."""
    return next((result for each in candidates if (result := function(each)) is not None), None)


def number_text(value: float) -> str:
    """Return a scale, a loss, or a norm as text: 65536, 2^-20, 0.4213, NaN."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if 0 < value < 1e-3 or value >= 2**31:
        power = math.log2(value)
        return f"2^{power:.0f}" if power.is_integer() else f"{value:.3g}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"


def counted(count: float, noun: str) -> str:
    """Return a count with its noun: "1 step", "2 steps"."""
    return f"{count:,.0f} {noun}{'s' * (count != 1)}"
