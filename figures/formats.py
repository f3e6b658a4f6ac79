"""Gradients against four number formats: one loss scale per model suffices for fp16, for E4M3 it does not.
At the best scale the largest element just fits; what is too far below it is flushed. Grey: no element, or next to none.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsim.records import Record
from figures import _style
from figures.results import Result

DATA = ("formats",)
KINDS = ("parameters", "activations")
TITLES = {"sigmoid": "Deep sigmoid net", "resnet": "Residual net", "gpt": "GPT", "vit": "ViT"}
SHORT = {"sigmoid": "sigmoid", "resnet": "residual", "gpt": "GPT", "vit": "ViT"}


class Look(NamedTuple):
    """The look of a format."""

    name: str
    binades: float  # from the largest flushed magnitude to the smallest that overflows
    color: str


LOOKS = {
    "e4m3": Look("E4M3", math.log2(464) + 10, "#12355B"),
    "e5m2": Look("E5M2", math.log2(61440) + 17, "#3F7FB5"),
    "fp16": Look("fp16", math.log2(65520) + 25, "#8DBADB"),
}
GONE = "#C8442B"
DEEPEST = 48  # binades below the largest element that are drawn
FEWEST = 1e-6  # share of the elements, at the end of the axes
NONE = 1.5e-7  # where a share of 0 stands, and one below `FEWEST`
SUFFICES = 1e-3
SMALL = 6.5  # points
WHOLE, OWN, THEORY = _style.BLACK, _style.GREEN, _style.VERMILION
MARKS = (  # name, marker, colour, size
    ("one scale per model", "o", WHOLE, 3.6),
    ("one scale per tensor", "o", OWN, 3.6),
    ("per model, by T9", "|", THEORY, 6.0),
)


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 5.6)
    halves = figure.add_gridspec(2, 1, height_ratios=(1, 1.05))
    grid = halves[0].subgridspec(2, len(TITLES))
    for column, (arm, letter) in enumerate(zip(TITLES, "abcd", strict=True)):
        units = run.arm(arm)
        above, below = (figure.add_subplot(grid[row, column]) for row in range(2))
        for axes, kind in ((above, KINDS[0]), (below, KINDS[1])):
            draw_histogram(axes, [unit[kind] for unit in units])
            axes.tick_params(axis="y", labelleft=column == 0)
            if column == 0:
                axes.set_ylabel(f"share, {kind}")
        _style.label_panel(above, letter, TITLES[arm])
        above.tick_params(axis="x", labelbottom=False)
        below.set_xlabel("bits below the largest")
    name_formats(figure.axes)
    lower = halves[1].subgridspec(1, 2)
    for column, (kind, letter) in enumerate(zip(KINDS, "ef", strict=True)):
        axes = figure.add_subplot(lower[column])
        draw_flushed(axes, run, kind)
        _style.label_panel(axes, letter, f"Flushed at the best scale: {kind}")
        axes.tick_params(axis="y", labelleft=column == 0, length=0)
    name_marks(axes)
    return figure


def draw_histogram(axes: Axes, units: Sequence[Record]) -> None:
    """Draw binades below the largest element, in the colour of the narrowest format with them, and T9's curve.

    The seeds' average, of both.
    """
    counts = np.array([unit["counts"] for unit in units], np.float64)
    share = (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)[:DEEPEST]
    depths = np.arange(DEEPEST)
    colors = [next((look.color for look in LOOKS.values() if depth + 1 < look.binades), GONE) for depth in depths]
    axes.bar(-depths, share, width=-1, align="edge", color=colors, linewidth=0, label="share")
    edges = np.arange(-DEEPEST, 1)
    fits = [np.diff([normal(unit).cdf(float(edge)) for edge in edges]) for unit in units]
    axes.plot(edges[:-1] + 0.5, np.mean(fits, axis=0), color=THEORY, linewidth=0.9, label="log-normal")
    axes.set(yscale="log", ylim=(FEWEST, 1), xlim=(-DEEPEST, 0))
    axes.set_yticks([1e-6, 1e-4, 1e-2, 1])
    axes.minorticks_off()


def normal(unit: Record) -> NormalDist:
    """Return the log-normal fit, in bits from the upper end of the largest element's binade."""
    return NormalDist(unit["log2_mean"] - math.floor(unit["log2_largest"]) - 1, unit["log2_sigma"])


def name_formats(panels: Sequence[Axes]) -> None:
    """Name the formats in their colours, beside a histogram that needs the narrowest only, and GPT's second humps."""
    words = [(f"in {look.name}", look.color) for look in LOOKS.values()]
    for number, (word, color) in enumerate([*words, ("in none but bf16", GONE)]):
        panels[2].text(-47, 0.1 * 0.1**number, word, color=color, fontsize=SMALL)
    for axes, word in ((panels[4], "key biases"), (panels[5], "first token's\nqueries")):
        axes.text(-47, 0.9, f"{word}: 0 but\nfor rounding", color=_style.GREY, fontsize=SMALL, va="top")
    panels[6].text(-26, 0.1, "log-normal", color=THEORY, fontsize=SMALL, ha="center")


def draw_flushed(axes: Axes, run: Result, kind: str) -> None:
    """Draw a line per format and model: with one scale for all, one per tensor, and what T9 says of one for all."""
    rows = [(look, arm) for look in reversed(LOOKS) for arm in TITLES]
    places = [-number - 1.0 * (number // len(TITLES)) for number in range(len(rows))]
    for (look, arm), y in zip(rows, places, strict=True):
        lost = [unit[kind]["formats"][look] for unit in run.arm(arm)]
        whole, own, theory = (
            np.array([fmt[name] for fmt in lost]) for name in ("flushed", "flushed_per_tensor", "predicted")
        )
        axes.plot(shown([own.mean(), whole.mean()]), [y, y], color=WHOLE, linewidth=0.6, zorder=1)
        for shares, (_, marker, color, size) in zip((whole, own, theory)[::-1], MARKS[::-1], strict=True):
            edge = 0 if marker == "o" else 0.5
            axes.plot(shown(shares), [y] * len(shares), marker, color=color, markersize=0.45 * size, alpha=0.6,
                      markeredgewidth=edge)  # fmt: skip
            axes.plot(shown([shares.mean()]), [y], marker, color=color, markersize=size, label=f"{look} {arm}",
                      markeredgewidth=2.4 * edge)  # fmt: skip
    for look, y in zip(reversed(LOOKS), places[:: len(TITLES)], strict=True):
        axes.text(FEWEST, y + 0.55, LOOKS[look].name, fontweight="bold", fontsize=7)
    axes.axvline(SUFFICES, color=_style.GREY, linewidth=0.6, linestyle=(0, (1, 1.2)), zorder=0)
    axes.text(1.2 * SUFFICES, 1.4, f"{SUFFICES:.1%}", color=_style.GREY, fontsize=SMALL, va="top")
    axes.axvspan(NONE / 2, FEWEST / 2.4, color="#F2F2F2", linewidth=0, zorder=0)
    axes.set(xscale="log", xlim=(NONE / 2, 1.2), ylim=(places[-1] - 0.6, 1.5), xlabel="share of the elements")
    powers = range(-6, 0, 2)
    axes.set_xticks([NONE, *(10.0**k for k in powers), 1], ["none", *map(_style.power_of_ten, powers), "all"])
    axes.minorticks_off()
    axes.set_yticks(places, [SHORT[arm] for _, arm in rows])


def shown(shares: Any) -> NDArray[np.float64]:
    """Return where shares stand on the axes."""
    return np.where(np.asarray(shares) < FEWEST, NONE, shares)


def name_marks(axes: Axes) -> None:
    """Name the marks where nothing else stands."""
    for y, (word, marker, color, size) in zip((-1, -2, -3), MARKS, strict=True):
        edge = 0 if marker == "o" else 1.2
        axes.plot([4e-3], [y], marker, color=color, markersize=size, label="key", markeredgewidth=edge)
        axes.text(7e-3, y, word, color=color, fontsize=7, va="center")
