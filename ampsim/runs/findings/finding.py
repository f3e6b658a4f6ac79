"""What a finding is. Its cause and what to try are in ``advice.toml``, by its id."""

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
        level: "proved" if it is true of each run that could have printed the log, "likely" if an expert would say it.
        message: What happened and where, in one or two sentences.
        lines: Lines of the log that show it; of many lines, the first ones.
        step: Step of the first line; NaN if the log does not give it.
        values: Numbers in the message, by name.
        hints: Advice whose cause stands elsewhere in the log.
    """

    id: str
    severity: str
    level: str
    message: str
    lines: tuple[int, ...] = ()
    step: float = math.nan
    values: Mapping[str, float | str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it begins, for example "step 90"; "it" if the log does not show it."""
        if math.isfinite(self.step):
            return f"step {self.step:.0f}"
        return f"line {self.lines[0]}" if self.lines else "it"

    @property
    def cause(self) -> str:
        """Likely cause; "" if there is nothing to explain."""
        return str(self._advice.get("cause", ""))

    @property
    def actions(self) -> list[str]:
        """What to try, the most promising first."""
        shared = _table()["shared"]
        known = self._advice.get("actions", ())
        return [*self.hints, *(shared.get(each, each).format(place=self.place) for each in known)]

    @property
    def _advice(self) -> dict[str, Any]:
        kind, _, rest = self.id.partition("-")
        if kind in ("error", "warning"):
            from ampsim.runs.read.error_texts import error_by_id

            row = error_by_id(rest)
            return {
                "cause": row["cause"],
                "actions": [row["fix"].replace("{", "{{").replace("}", "}}")],
            }
        return dict(_table().get(self.id, {}))


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))


def at(
    series: Series,
    row: int,
    identifier: str,
    severity: str,
    level: str,
    message: str,
    **values: float | str,
) -> Finding:
    """Return a finding that begins at a number of a series and lasts to its end."""
    lines = tuple(series.lines[row:][:MOST_LINES].tolist())
    return Finding(identifier, severity, level, message, lines, float(series.steps[row]), values)


def of_events(
    events: list[Event],
    identifier: str,
    severity: str,
    level: str,
    message: str,
    **values: float | str,
) -> Finding:
    """Return a finding that sentences of the log show."""
    lines = tuple(event.line for event in events[:MOST_LINES])
    return Finding(identifier, severity, level, message, lines, events[0].step, values)


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
