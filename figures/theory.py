"""Theorems T1 to T10: how far the machine is from each, and what the growth interval and the backoff factor trade."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core import theory
from ampsim.records import Record
from figures import _style
from figures.results import Result

DATA = ("theory",)
LOOK = {  # theorem -> colour, marker
    "T1": (_style.BLACK, "*"), "T2": (_style.BLUE, "o"), "T3": (_style.VERMILION, "s"), "T4": (_style.GREEN, "^"),
    "T5": (_style.ORANGE, "v"), "T6": (_style.SKY, "D"), "T7": (_style.PURPLE, "P"), "T8": ("#7A1F3D", "X"),
    "T9": ("#8C6D1F", "<"), "T10": (_style.GREY, ">"),
}  # fmt: skip
LEAST = 1e-16  # an error of 0 is drawn here
INTERVALS = np.geomspace(5, 5000, 49)  # edges of the map's columns
BACKOFFS = range(1, 7)  # its rows, bits
MEAN, SIGMA = 16.5, 1.0  # of log2 of the ceilings, as in the simulated cases


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 3.7)
    axes = figure.subplot_mosaic("aa;bc", height_ratios=(1.15, 1))
    draw_errors(axes["a"], run)
    rates, rooms = maps()
    draw_map(figure, axes["b"], np.log10(rates), (-4.5, -0.7), marked(run, "skip rate", np.log10))
    _style.label_panel(axes["b"], "b", "log10 of the skip rate by T3; circles: simulated")
    draw_map(figure, axes["c"], rooms, (1, 7), marked(run, "headroom", float))
    _style.label_panel(axes["c"], "c", "Headroom by T3, bits; circles: simulated")
    return figure


def numbers(run: Result) -> list[tuple[str, Record]]:
    """Return (theorem, what was held) of every number."""
    return [(record["theorem"].split()[0], held) for record in run.records for held in record["held"]]


def is_exact(held: Record) -> bool:
    return bool(held["tolerance"] < 1e-6)


def draw_errors(axes: Axes, run: Result) -> None:
    """Draw the error of every number, by theorem; a tick is a tolerance."""
    for place, (theorem, (color, marker)) in enumerate(LOOK.items()):
        rows = [held for name, held in numbers(run) if name == theorem]
        x = place + (np.linspace(-0.33, 0.33, len(rows)) if len(rows) > 1 else np.zeros(1))
        axes.plot(x, [held["tolerance"] for held in rows], "_", color=_style.GREY, markersize=4, label="tolerance")
        full = [color if is_exact(held) else "white" for held in rows]
        error = [max(held["error"], LEAST) for held in rows]
        axes.scatter(x, error, marker=marker, s=12, c=full, edgecolors=color, linewidths=0.7, label=theorem, zorder=3)
    axes.set(yscale="log", ylim=(LEAST / 4, 1), xlim=(-0.6, len(LOOK) - 0.4), ylabel="relative error")
    axes.set_xticks(range(len(LOOK)), list(LOOK))
    axes.set_yticks([LEAST, 1e-12, 1e-9, 1e-6, 1e-3, 1], ["0", *(_style.power_of_ten(k) for k in (-12, -9, -6, -3, 0))])
    axes.minorticks_off()
    axes.tick_params(axis="x", length=0)
    _style.label_panel(axes, "a", "Error of the machine; full: exact theorem; empty: to the tolerance (ticks)")


def maps() -> tuple[Any, Any]:
    """Return T3's skip rate and headroom for random ceilings, (backoffs, intervals) both."""
    x, p = theory.normal_ceilings(MEAN, SIGMA)
    columns = np.sqrt(INTERVALS[1:] * INTERVALS[:-1]).round().astype(int)
    forms = [[theory.stationary(p, int(interval), b) for interval in columns] for b in BACKOFFS]
    rates = np.array([[form.skip_rate for form in row] for row in forms])
    return rates, np.array([[MEAN - x @ form.clean for form in row] for row in forms])


def marked(run: Result, name: str, shown: Callable[[float], float]) -> list[tuple[int, int, float]]:
    """Return (growth interval, backoff in bits, what is measured, as shown) of the simulated cases on the map."""
    found = []
    for interval in (20, 100, 500):
        for b in (1, 2, 4):
            (record,) = run.one(theorem="T3", parameters=f"G={interval}, sigma={SIGMA:g}, b={b}")
            found += [(interval, b, shown(held["measured"])) for held in record["held"] if held["name"] == name]
    return found


def draw_map(
    figure: Figure, axes: Axes, values: Any, limits: tuple[float, float], points: list[tuple[int, int, float]]
) -> None:
    """Draw the closed form as the ground, simulated points on it in the same colours."""
    low, high = np.log10(INTERVALS[[0, -1]])
    look: Any = {"cmap": "cividis_r", "vmin": limits[0], "vmax": limits[1]}
    ground = axes.imshow(values, origin="lower", aspect="auto", interpolation="nearest",
                         extent=(low, high, min(BACKOFFS) - 0.5, max(BACKOFFS) + 0.5), **look)  # fmt: skip
    interval, b, measured = zip(*points, strict=True)
    axes.scatter(np.log10(interval), b, c=measured, s=30, edgecolors="white", linewidths=0.9, **look)
    bar = figure.colorbar(ground, ax=axes, pad=0.03, aspect=18)
    bar.outline.set_linewidth(0.4)
    axes.set_xticks([1, 2, 3], [str(10**k) for k in (1, 2, 3)])
    axes.set_yticks(list(BACKOFFS), [_style.power_of_two(-k) for k in BACKOFFS])
    axes.set(xlabel="growth interval G", ylabel="backoff factor")
    axes.tick_params(axis="y", length=0)
