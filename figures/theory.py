"""Theorems T1 to T10: error of the state machine against each theorem, and the trade-off between
growth interval and backoff factor.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core import theory
from ampsim.core.json_lines import Record
from figures import _style
from figures.results import Result

DATA = ("theory",)
LOOK = {  # theorem -> colour, marker
    "T1": (_style.BLACK, "*"), "T2": (_style.BLUE, "o"), "T3": (_style.VERMILION, "s"), "T4": (_style.GREEN, "^"),
    "T5": (_style.ORANGE, "v"), "T6": (_style.SKY, "D"), "T7": (_style.PURPLE, "P"), "T8": ("#7A1F3D", "X"),
    "T9": ("#8C6D1F", "<"), "T10": (_style.GREY, ">"),
}  # fmt: skip
LEAST = 1e-16  # an error of 0 is drawn here
NAMES = ("skip rate", "headroom")
INTERVALS = np.unique(np.geomspace(5, 5000, 60).round().astype(int))
BACKOFFS = {1: _style.BLUE, 2: _style.GREEN, 4: _style.VERMILION}  # bits -> colour
MEAN, SIGMA = 16.5, 1.0  # of log2 of the thresholds, as in the simulated cases


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 3.7)
    axes = figure.subplot_mosaic("aa;bc", height_ratios=(1.15, 1))
    draw_errors(axes["a"], run)
    for letter, place, name, unit in zip(
        "bc", (0, 1), NAMES, ("skips per growth interval", "bits"), strict=True
    ):
        draw_trade(axes[letter], forms()[place], marked(run, name))
        axes[letter].set_ylabel(unit)
    _style.label_panel(axes["b"], "b", "Skips per G steps from T3 (circles: simulated)")
    _style.label_panel(axes["c"], "c", "Headroom from T3 (circles: simulated)")
    return figure


def numbers(run: Result) -> list[tuple[str, Record]]:
    """Return (theorem, what was held) of every number."""
    return [
        (record["theorem"].split()[0], held) for record in run.records for held in record["held"]
    ]


def is_exact(held: Record) -> bool:
    return bool(held["tolerance"] < 1e-6)


def draw_errors(axes: Axes, run: Result) -> None:
    """Draw the error of every number, by theorem; a tick is a tolerance."""
    for place, (theorem, (color, marker)) in enumerate(LOOK.items()):
        rows = [held for name, held in numbers(run) if name == theorem]
        if not rows:
            continue
        x = place + (np.linspace(-0.33, 0.33, len(rows)) if len(rows) > 1 else np.zeros(1))
        axes.plot(
            x,
            [held["tolerance"] for held in rows],
            "_",
            color=_style.GREY,
            markersize=4,
            label="tolerance",
        )
        full = [color if is_exact(held) else "white" for held in rows]
        error = [max(held["error"], LEAST) for held in rows]
        axes.scatter(
            x,
            error,
            marker=marker,
            s=12,
            c=full,
            edgecolors=color,
            linewidths=0.7,
            label=theorem,
            zorder=3,
        )
    axes.set(
        yscale="log", ylim=(LEAST / 4, 1), xlim=(-0.6, len(LOOK) - 0.4), ylabel="relative error"
    )
    axes.set_xticks(range(len(LOOK)), list(LOOK))
    axes.set_yticks(
        [LEAST, 1e-12, 1e-9, 1e-6, 1e-3, 1],
        ["0", *(_style.power_of_ten(k) for k in (-12, -9, -6, -3, 0))],
    )
    axes.minorticks_off()
    axes.tick_params(axis="x", length=0)
    _style.label_panel(
        axes,
        "a",
        "Error of the state machine (filled: exact theorems; open: approximate; ticks: tolerance)",
    )


def forms() -> tuple[Any, Any]:
    """Return T3's skips per growth interval and headroom for random thresholds, (backoffs, intervals) both."""
    x, p = theory.normal_thresholds(MEAN, SIGMA)
    found = [[theory.stationary(p, int(interval), b) for interval in INTERVALS] for b in BACKOFFS]
    skips = np.array([[form.skip_rate for form in row] for row in found]) * INTERVALS
    return skips, np.array([[MEAN - x @ form.clean for form in row] for row in found])


def marked(run: Result, name: str) -> list[tuple[int, int, float]]:
    """Return (growth interval, backoff in bits, what is measured) of the simulated cases; a rate per interval."""
    found = []
    for interval in (20, 100, 500):
        for b in BACKOFFS:
            arms = run.where(theorem="T3", parameters=f"G={interval}, sigma={SIGMA:g}, b={b}")
            unit = interval if name == "skip rate" else 1
            found += [
                (interval, b, unit * held["measured"])
                for arm in arms
                for held in arm.first["held"]
                if held["name"] == name
            ]
    return found


def draw_trade(axes: Axes, values: Any, points: list[tuple[int, int, float]]) -> None:
    """Draw a line of T3 per backoff factor, named at its end, and simulated points on it."""
    for (b, color), line in zip(BACKOFFS.items(), values, strict=True):
        axes.plot(INTERVALS, line, color=color)
        simulated = [(g, y) for g, backoff, y in points if backoff == b]
        for g, y in simulated:
            axes.plot(g, y, "o", color=color, markersize=4, markerfacecolor="white")
        _style.label_right(axes, line[-1], line[-1], f"backoff {_style.power_of_two(-b)}", color)
    axes.set(xscale="log", xlabel="growth interval G", xlim=(INTERVALS[0], INTERVALS[-1]))
