"""Figures that tests share: each is drawn once per process."""

from functools import cache
from typing import Any

from matplotlib.figure import Figure

from figures import _style, rendering


@cache
def drawn(stem: str) -> Figure:
    """Return a figure of the committed data; tests look at it and change nothing."""
    with _style.style(), rendering.uncollected():
        return rendering.draw(stem)


def lines(axes: Any, label: str) -> list[Any]:
    """Return the lines of this label."""
    return [line for line in axes.lines if line.get_label() == label]


def one(axes: Any, label: str) -> Any:
    """Return the only line of this label."""
    (line,) = lines(axes, label)
    return line
