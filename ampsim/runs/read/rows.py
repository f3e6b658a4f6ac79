"""Read records of named numbers: of JSON documents, trackers, and recorded runs."""

import math
from collections.abc import Mapping

from ampsim.runs.read.history import History, Series
from ampsim.runs.read.names import is_logarithm, role_of

OWN = "ampsim/"
"""Prefix of the names that `ampsim.runs.watch` writes to trackers."""


def as_number(value: object) -> float:
    """Return a value of a record as a number: JSON's numbers, booleans, and texts such as "nan"; NaN of others."""
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str) and len(value) < 40:
        try:
            return float(value)
        except ValueError:
            return math.nan
    return math.nan


def is_number(value: object) -> bool:
    """Return whether a value of a record is a number, or a text that shows one."""
    if isinstance(value, str):
        return value.strip().lower() in ("nan", "inf", "-inf", "infinity") or not math.isnan(
            as_number(value)
        )
    return isinstance(value, int | float)


class RowReader:
    """Adds records of named numbers to a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._series: dict[str, Series] = {}
        self._roles: dict[str, str] = {}

    def add(self, line: int, row: Mapping[str, object], step: float = math.nan) -> None:
        """Add a record.

        Args:
            line: Line of the record, or its number.
            row: Name -> value. Values that are no numbers are ignored.
            step: Step of the record, unless the record has one of its own.
        """
        numbers = {str(name): as_number(value) for name, value in row.items() if is_number(value)}
        own = [value for name, value in numbers.items() if name == f"{OWN}step"]
        own += [
            value
            for name, value in numbers.items()
            if self._role(name) == "step" and name != "_step"
        ]
        step = own[0] if own else step
        for name, value in numbers.items():
            role = self._role(name)
            if role and role not in ("step", "epoch"):
                self._add(name, role, line, step, value)
        self.history.line_count = max(self.history.line_count, line)

    def _role(self, name: str) -> str:
        role = self._roles.get(name)
        if role is None:
            low = name.lower().removeprefix(OWN).replace("_", " ").replace(".", "/")
            plain = low.rpartition("/")[2]
            role = role_of(low) or role_of(plain)
            if role == "norm" and not role_of(low):
                role = ""  # such as weights/norm
            held_out = any(
                word in low.split("/")[0].split()
                for word in ("eval", "val", "valid", "validation", "test")
            )
            role = "evaluation" if role == "loss" and held_out else role
            self._roles[name] = role
        return role

    def _add(self, name: str, role: str, line: int, step: float, value: float) -> None:
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Series(name.lower().removeprefix(OWN), role)
            self.history.series.append(series)
        if is_logarithm(name.lower()) and math.isfinite(value):
            value = 2.0 ** max(-1000.0, min(1000.0, value))
        series.add(line, step, value)
