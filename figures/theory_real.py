"""T3 predicts the skips of real fp16 runs within three standard deviations, without fitted
parameters.

Deviation of skips and scale from theorem T3, and distribution of the scale. The mean scale lies
above T3's by less than a tenth of a bit.
"""

from collections.abc import Callable, Mapping, Sequence
from math import hypot

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from ampsim.core import theory
from figures import _style
from figures.derived_numbers import counted, levels_above, skips_above
from figures.results import ArmRecords, Array, Result

DATA = ("theory_real",)
NEEDS = {"theory_real": ("fp32",)}  # the distribution of thresholds
SHOWN = {
    5: _style.SKY,
    20: _style.BLUE,
    100: "#003B5C",
}  # growth intervals whose distribution is drawn


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.2)
    a, b, c = figure.subplots(1, 3, width_ratios=(1, 1, 1.25))
    draw_above(a, run, skips_above)
    draw_above(b, run, levels_above)
    draw_distributions(c, run)
    for axes in (a, b):
        axes.set_ylabel("above T3 (std. deviations)")
    place = {"transform": a.transAxes, "va": "center"}
    a.text(
        0.04, 0.07, "dot: one seed; bar: all", fontsize=7, color=_style.BLUE, **place
    )
    _style.label_panel(a, "a", f"Skipped steps, {_style.seeds(run)}")
    _style.label_panel(b, "b", "Mean log2 scale")
    return figure


def by_interval(run: Result) -> dict[int, ArmRecords]:
    """Return the fp16 runs by growth interval."""
    return {arm.settings["growth_interval"]: arm for arm in run.where(dtype="float16")}


def draw_above(
    axes: Axes,
    run: Result,
    above: Callable[[Result, int], Sequence[tuple[float, float]]],
) -> None:
    """Draw how far each seed lies above its own distribution, and all seeds together, in
    deviations that chance makes.
    """
    axes.axhspan(-2, 2, color="#EEEEEE", linewidth=0)
    axes.axhline(0, color=_style.VERMILION, label="T3")
    for interval in by_interval(run):
        seeds = above(run, interval)
        each = [more / deviation for more, deviation in seeds]
        axes.plot(
            [interval] * len(each),
            each,
            "o",
            color=_style.BLUE,
            markersize=3,
            label=f"seeds G={interval}",
        )
        whole = sum(more for more, _ in seeds) / hypot(
            *(deviation for _, deviation in seeds)
        )
        axes.plot(
            interval,
            whole,
            "_",
            color=_style.BLACK,
            markersize=13,
            markeredgewidth=1.6,
            label=f"all G={interval}",
        )
    intervals = list(by_interval(run))
    ends = (0.8 * min(intervals), 1.25 * max(intervals))
    axes.set(xscale="log", xlabel="growth interval G", xlim=ends, ylim=(-5, 5))
    _style.number_ticks(axes.xaxis, intervals)


def share(counts: Mapping[int, int]) -> tuple[Array, Array]:
    """Return the levels, and the share of steps at each."""
    total = sum(counts.values())
    return np.array(list(counts)), np.array(
        [count / total for count in counts.values()]
    )


def draw_distributions(axes: Axes, run: Result) -> None:
    """Draw the share of steps at each scale: bars are measured, ticks are T3; the float32
    thresholds lie behind.
    """
    found = by_interval(run)
    axes.bar(
        *share(counted(run.one(dtype="float32"), "thresholds")),
        width=0.96,
        color="#E6E6E6",
        label="thresholds",
    )
    shown = {interval: color for interval, color in SHOWN.items() if interval in found}
    width = 0.8 / max(len(shown), 1)
    for place, (interval, color) in enumerate(shown.items()):
        shift = (place - (len(shown) - 1) / 2) * width
        level, height = share(counted(found[interval], "scales"))
        axes.bar(level + shift, height, width=width, color=color, label=f"G={interval}")
        x, form = theory.of_thresholds(counted(found[interval], "thresholds"), interval)
        axes.plot(
            x + shift,
            form.levels,
            "_",
            color=_style.BLACK,
            markersize=7,
            label=f"T3 G={interval}",
        )
    axes.xaxis.set_major_locator(MultipleLocator(2))
    axes.xaxis.set_major_formatter(lambda exponent, _: _style.power_of_two(exponent))
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="loss scale", ylabel="share of steps", ylim=(0, 1.35))
    named = {
        "thresholds": "#8A8A8A",
        **{f"G = {g}": color for g, color in shown.items()},
        "T3 (ticks)": _style.BLACK,
    }
    for row, (text, color) in enumerate(named.items()):
        axes.text(
            0.02,
            0.97 - 0.085 * row,
            text,
            color=color,
            transform=axes.transAxes,
            va="top",
            fontsize=7,
        )
    _style.label_panel(axes, "c", "Distribution of the scale")
