"""Statements about a run: first the data (what, where, how many, which lines), then the words.

A statement is made only if it is true of every run that could have printed this log: see `ampsim.diagnose.evidence`
for what proves what. The words are in the table of formats.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampsim.diagnose.formats import TABLE
from ampsim.diagnose.history import History
from ampsim.diagnose.wording import counted, scale_text

LINES = 40  # lines that a statement names as its evidence; of more, the first and the last
ENDS = [0, -1]  # the first row and the last
SCALES = frozenset({"from", "to", "low", "high"})  # numbers that are loss scales
_HOLE = re.compile(r"\{(\w+)(?::([\w ]+))?\}")
Bound = tuple[float, float | None]


SEVERITY = {"wrong": "problem", "note": "warning", "fact": "info"}  # in the table -> for programs


@dataclass(frozen=True)
class Statement:
    """One thing that the log shows."""

    kind: str  # its name in the table of formats
    first: float  # the first step that it is about, as the log numbers them, or the first line that shows it
    last: float
    numbers: Mapping[
        str, Bound | str
    ]  # each number with its bounds, None for none above; or a text
    lines: tuple[int, ...]  # the lines of the log that show it
    unit: str = "step"
    place: float = 0.0  # the step at which a chart shows it

    @property
    def verdict(self) -> str:
        """Whether it is "wrong", a "note" or a "fact"."""
        return str(TABLE["statement"][self.kind]["verdict"])

    @property
    def why(self) -> str:
        """What is wrong: "scale", "other", or "said" where the program tells."""
        return str(TABLE["statement"][self.kind].get("why"))

    @property
    def step(self) -> int:
        """The first step, as a whole number."""
        return int(max(self.place, 0))

    @property
    def heading(self) -> str:
        """What it is called before its words."""
        return str(TABLE["statement"][self.kind].get("heading", self.kind))

    @property
    def what(self) -> str:
        """The statement in words."""
        return self._filled("words")

    @property
    def fix(self) -> str:
        """What to try; empty if there is nothing to try."""
        return self._filled("fix")

    def to_json(self) -> dict[str, object]:
        """Return the data, and the words."""
        numbers = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.numbers.items()
        }
        first, last = (value if math.isfinite(value) else None for value in (self.first, self.last))
        given = {
            "id": self.kind,
            "severity": SEVERITY[self.verdict],
            "first": first,
            "last": last,
            "unit": self.unit,
        }
        return {**given, "values": numbers, "lines": list(self.lines), "message": self.what}

    def _filled(self, part: str) -> str:
        def fill(found: re.Match[str]) -> str:
            name, noun = found.groups()
            if name == "where":
                return where(self.first, self.last, self.unit)
            if name == "end":
                return where(self.last, self.last, self.unit)
            value = self.numbers[name]
            return value if isinstance(value, str) else said(name, value, noun)

        text = _HOLE.sub(fill, TABLE["statement"][self.kind].get(part, ""))
        return text[:1].upper() + text[1:]


def said(name: str, bound: Bound, noun: str | None) -> str:
    """Return a number with its bounds and its noun in words.

    >>> said("skips", (3, 7), "step"), said("skips", (1, None), "step"), said("least", (1e90, 1e90), None)
    ('between 3 and 7 steps', 'at least 1 step', '1e+90')
    """
    low, high = bound
    if name in SCALES:
        return scale_text(low)
    shown = (
        counted(low, noun)
        if noun
        else f"{low:.15g}"
        if low < 2**53 and low == int(low)
        else f"{low:.4g}"
    )
    if high is None:
        return f"at least {shown}"
    return (
        shown
        if high == low
        else f"between {low:g} and {counted(high, noun) if noun else format(high, 'g')}"
    )


def where(first: float, last: float, unit: str) -> str:
    """Return steps or lines in words.

    >>> where(3, 3, "step"), where(3, 7.5, "line")
    ('step 3', 'lines 3 to 8')
    """
    low, high = int(max(first, 0)), int(-(-last // 1))
    return f"{unit} {low}" if low >= high else f"{unit}s {low} to {high}"


def make(
    run: History,
    kind: str,
    rows: object,
    since: float | Bound | str = False,
    **numbers: float | Bound | str,
) -> Statement:
    """Return a statement about some rows; a plain number is exact. `since`: it is of the steps before them, too."""
    at = np.arange(len(run.step))[np.atleast_1d(np.asarray(rows, np.int64))]
    lines = sorted({int(line) for line in run.line[at] if line > 0})
    lines = lines if len(lines) <= LINES else [*lines[: LINES // 2], *lines[-LINES // 2 :]]
    given: dict[str, Any] = {}
    for name, value in numbers.items():
        if isinstance(value, str):
            given[name] = value.replace("`", "'")  # a name in the log is no code of the page
        else:
            given[name] = value if isinstance(value, tuple) else (value, value)
    told = np.append(at, at.min() - 1) if since else at
    one = (
        told.min() >= 0
        and run.numbered[told].all()
        and len({*run.segment[told.min() : told.max() + 1]}) == 1
    )
    ends, unit = run.step[[max(told.min(), 0), told.max()]], run.unit
    if lines and (
        not one or unit == "line" or run.settings.get("composed")
    ):  # no number of the log's own
        ends, unit = np.array([lines[0], lines[-1]]), "line"
    low = run.bounds[0, told.min()] if told.min() >= 0 else -math.inf
    place = low if math.isfinite(low) else min(run.bounds[1, at.max()], 2.0**53)
    return Statement(kind, float(ends[0]), float(ends[1]), given, tuple(lines), unit, float(place))
