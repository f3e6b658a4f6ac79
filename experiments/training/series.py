"""From a series, one value per step, to the short form that a record keeps of it."""

from collections.abc import Sequence
from typing import Any


def changes(values: Sequence[float]) -> list[list[float]]:
    """Return a piecewise constant series as [[step, value in force from that step on], ...]."""
    return [
        [step, value]
        for step, value in enumerate(values)
        if step == 0 or value != values[step - 1]
    ]


def flagged(flags: Sequence[bool]) -> list[int]:
    """Return the steps whose flag is set."""
    return [step for step, flag in enumerate(flags) if flag]


def six_digits(values: Sequence[float]) -> list[float]:
    """Round to 6 significant digits, well below what two seeds differ by, so that the files stay
    small.
    """
    return [float(f"{value:.6g}") for value in values]


def table(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Turn rows into columns."""
    return [list(column) for column in zip(*rows, strict=True)]
