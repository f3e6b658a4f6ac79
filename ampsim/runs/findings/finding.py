"""What a finding is; ``findings.toml`` has its severity, its cause, and what to try, by its id."""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ampsim.runs.read.history import Event, Series

SEVERITIES = ("problem", "warning", "info")
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
    return tomllib.loads(
        Path(__file__).with_name("findings.toml").read_text(encoding="utf-8")
    )


def make(
    identifier: str,
    lines: Iterable[int] = (),
    step: float = math.nan,
    *,
    severity: str = "",
    level: str = "",
    **values: float | str,
) -> Finding:
    """Return a finding in the words of the table, with its values in them.

    Args:
        identifier: Row of the table.
        lines: Lines of the log that show it.
        step: Step of the first line.
        severity: Severity; "" for that of the row.
        level: Level; "" for that of the row.
        values: Fields of the message. A count is an int; a loss, a norm, or a scale is a float.
    """
    row, shared = table()[identifier], table()["shared"]
    shown = {name: _text(value) for name, value in values.items()}
    finding = Finding(
        identifier,
        severity or row.get("severity", "problem"),
        level or row.get("level", "likely"),
        row["message"].format_map(shown),
        tuple(lines)[:MOST_LINES],
        float(step),
        values,
        row.get("cause", ""),
    )
    # What began earlier than it shows has "restart".
    place = str(values.get("restart", values.get("place", finding.place)))
    keys = row.get("actions", ())
    if place in ("step 0", "step 1", "epoch 0"):  # no checkpoint is older
        keys = [key for key in keys if key != "restart"]
    actions = [shared.get(key, key) for key in keys]
    return replace(
        finding, actions=tuple(action.format(place=place) for action in actions)
    )


def at(series: Series, row: int, identifier: str, **options: Any) -> Finding:
    """Return a finding that begins at a number of a series; see `make`.

    The message may name the series, the place, and the numbers from there on: {name}, {place},
    {records}, {total}.
    """
    fields = {
        "name": series.label,
        "place": series.place(row),
        "records": len(series) - row,
        "total": len(series),
    }
    lines = series.lines[row:][:MOST_LINES].tolist()
    return make(identifier, lines, series.known_steps[row], **{**fields, **options})


def of_events(events: list[Event], identifier: str, **options: Any) -> Finding:
    """Return a finding that sentences of the log show; see `make`. The message may name {times} and
    {line}.
    """
    first = events[0]
    fields = {"times": len(events), "line": first.line, **options}
    return make(identifier, [event.line for event in events], first.step, **fields)


def _text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else number_text(value)


def number_text(value: float) -> str:
    """Return a scale, a loss, or a norm as text: 65536, 2^-20, 0.4213, NaN."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if 0 < value < 1e-3 or value >= 2**31:
        power = math.log2(value)
        return f"2^{power:.0f}" if power.is_integer() else f"{value:.3g}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"
