"""Real fp16 runs against T3, which has nothing to fit: how often it skips, where its scale is."""

from collections.abc import Callable, Mapping
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core import theory
from ampsim.core.machine import Rule
from ampsim.records import Record
from figures import _style
from figures.quantities import counted, t3
from figures.results import ArmRecords, Array, Result

DATA = ("theory_real",)
SHOWN = {5: _style.SKY, 20: _style.BLUE, 100: "#003B5C"}  # growth intervals whose distribution is drawn


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.4)
    a, b, c = figure.subplots(1, 3, width_ratios=(1, 1, 1.25))
    draw_rates(a, run)
    draw_means(b, run)
    draw_distributions(c, run)
    return figure


def by_interval(run: Result) -> dict[int, ArmRecords]:
    """Return the fp16 runs by growth interval."""
    return {arm.settings["growth_interval"]: arm for arm in run.where(dtype="float16")}


def mean_scale(record: Record) -> float:
    return fmean(*zip(*record["scales"], strict=True))


def skip_rate(record: Record) -> float:
    return float(record["skipped"] / sum(count for _, count in record["ceilings"]))


def draw_against_t3(axes: Axes, run: Result, number: int, measure: Callable[[Record], float]) -> None:
    """Draw a number of T3 from two sources of ceilings, and as measured: a mark per seed."""
    found, reference = by_interval(run), counted(run.one(dtype="float32"), "ceilings")
    grid = np.unique(np.geomspace(min(found), max(found), 40).round().astype(int))
    predicted = [t3(reference, int(g))[number] for g in grid]
    axes.plot(grid, predicted, color=_style.VERMILION, label="T3, fp32 runs' ceilings")
    own = [[t3(dict(record["ceilings"]), g)[number] for record in arm] for g, arm in found.items()]
    seeds = ["T3, own ceilings", *[""] * (len(own[0]) - 1)]
    axes.plot(list(found), own, "_", color=_style.BLACK, markersize=11, label=seeds)
    measured = [[measure(record) for record in arm] for arm in found.values()]
    axes.plot(list(found), measured, "o", color=_style.BLUE, markersize=3.5, label=["fp16 runs", *seeds[1:]])
    axes.set(xscale="log", xlabel="growth interval G", xlim=(4.2, 120))
    _style.number_ticks(axes.xaxis, list(found))


def draw_rates(axes: Axes, run: Result) -> None:
    """Draw the skip rate, with T1's bound."""
    grid = np.unique(np.geomspace(min(by_interval(run)), max(by_interval(run)), 40).round().astype(int))
    bound = [theory.skip_rate(Rule(growth_interval=int(g))) for g in grid]
    axes.plot(grid, bound, color=_style.GREY, label="T1 bound", linestyle=(0, (1, 1.5)))
    draw_against_t3(axes, run, 0, skip_rate)
    axes.set(yscale="log", ylabel="skipped steps / steps", ylim=(5e-3, 0.35))
    for y, text, color in ((0.25, "T1's bound", _style.GREY), (0.045, "fp16 runs", _style.BLUE)):
        axes.text(9 if y > 0.1 else 4.6, y, text, color=color, fontsize=7, va="center")
    axes.text(4.6, 0.0105, "T3, own ceilings (ticks)", fontsize=7, va="center")
    axes.text(4.6, 0.0066, "T3, fp32 runs' ceilings", fontsize=7, va="center", color=_style.VERMILION)
    _style.label_panel(axes, "a", f"Skip rate, {_style.seeds(run)}")


def draw_means(axes: Axes, run: Result) -> None:
    """Draw the mean of log2 of the scale."""
    draw_against_t3(axes, run, 1, mean_scale)
    axes.set(ylabel="log2 of the scale", ylim=(17.2, 18.7))
    _style.label_panel(axes, "b", "Mean log2 scale")


def share(counts: Mapping[int, int]) -> tuple[Array, Array]:
    """Return the levels, and the share of steps at each."""
    total = sum(counts.values())
    return np.array(list(counts)), np.array([count / total for count in counts.values()])


def draw_distributions(axes: Axes, run: Result) -> None:
    """Draw the share of steps at each scale: bars measured, ticks T3; behind, the ceilings of the float32 runs."""
    found = by_interval(run)
    axes.bar(*share(counted(run.one(dtype="float32"), "ceilings")), width=0.96, color="#E6E6E6", label="ceilings")
    width = 0.8 / len(SHOWN)
    for place, (interval, color) in enumerate(SHOWN.items()):
        shift = (place - (len(SHOWN) - 1) / 2) * width
        level, height = share(counted(found[interval], "scales"))
        axes.bar(level + shift, height, width=width, color=color, label=f"G={interval}")
        x, form = theory.of_ceilings(counted(found[interval], "ceilings"), interval)
        axes.plot(x + shift, form.levels, "_", color=_style.BLACK, markersize=7, label=f"T3 G={interval}")
    _style.power_ticks(axes.xaxis, range(15, 21))
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="loss scale", ylabel="share of steps", xlim=(14.9, 20.6), ylim=(0, 0.95))
    named = {"ceilings": "#8A8A8A", **{f"G = {g}": color for g, color in SHOWN.items()}, "T3 (ticks)": _style.BLACK}
    for row, (text, color) in enumerate(named.items()):
        axes.text(0.02, 0.97 - 0.085 * row, text, color=color, transform=axes.transAxes, va="top", fontsize=7)
    _style.label_panel(axes, "c", "Where the scale is")
