"""Theorem T3 predicts how many steps of a real fp16 run are skipped, without a fitted parameter.

a, b: by how much the skips and the mean scale of runs lie above T3. A dot is a seed, and a bar is
the mean with two standard deviations of chance. c: the share of steps at each scale; ticks are T3.
The mean scale lies above T3's by less than a tenth of a bit.
"""

from collections.abc import Mapping, Sequence
from math import hypot
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from ampsim.core import theory
from figures import _style
from figures.derived_numbers import counted, levels_above, skips_above
from figures.results import ArmRecords, Array, Result

DATA = ("theory_real",)
RARE = 0.001  # a share of steps that no bar shows
SCATTER = "mean, two sd"  # of the bars
ALT = "Dots around a zero line by growth interval, and bars of the loss scale with predicted ticks"
SHOWN = {
    5: _style.SKY,
    20: _style.BLUE,
    100: "#003B5C",
}  # growth intervals whose distribution is drawn


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.2)
    a, b, c = figure.subplots(1, 3)
    intervals = list(by_interval(run))
    draw_above(a, intervals, [percents_above(run, each) for each in intervals])
    draw_above(b, intervals, [levels_above(run, each) for each in intervals])
    draw_distributions(c, run)
    a.set(ylabel="skips above theory (%)", ylim=(-12, 12))
    b.set(ylabel="scale above theory (bits)", ylim=(-0.12, 0.22))
    a.legend(loc="upper left", handlelength=1.0, ncols=2)
    _style.label_panel(a, "a", f"Skipped steps, {_style.seeds(run)}")
    _style.label_panel(b, "b", "Loss scale")
    return figure


def by_interval(run: Result) -> dict[int, ArmRecords]:
    """Return the fp16 runs by growth interval."""
    return {arm.settings["growth_interval"]: arm for arm in run.where(dtype="float16")}


def percents_above(run: Result, interval: int) -> list[tuple[float, float]]:
    """Return per seed by how many percent the skips lie above T3, and their deviation."""
    seeds = skips_above(run, interval)
    skipped = run.arm(f"G={interval}").column("skipped")
    return [
        (100 * more / (count - more), 100 * deviation / (count - more))
        for count, (more, deviation) in zip(skipped, seeds, strict=True)
    ]


def draw_above(
    axes: Axes,
    intervals: Sequence[int],
    above: Sequence[Sequence[tuple[float, float]]],
) -> None:
    """Draw how far each seed lies above its own prediction, and the mean of the seeds with two
    standard deviations of the chance in such runs.
    """
    axes.axhline(0, color=_style.VERMILION, linewidth=1, label="theory")
    for interval, seeds in zip(intervals, above, strict=True):
        each = [more for more, _ in seeds]
        chance = 2 * hypot(*(deviation for _, deviation in seeds)) / len(seeds)
        first = interval == intervals[0]
        dots: Any = {"color": _style.SKY, "markersize": 3}
        bar: Any = {"color": _style.BLACK, "markersize": 4, "capsize": 2.5}
        axes.plot(
            [interval] * len(each), each, "o", label="a seed" if first else None, **dots
        )
        axes.errorbar(
            interval,
            fmean(each),
            chance,
            fmt="_",
            label=SCATTER if first else None,
            **bar,
        )
    ends = (0.8 * min(intervals), 1.25 * max(intervals))
    axes.set(xscale="log", xlabel="growth interval G", xlim=ends)
    _style.number_ticks(axes.xaxis, intervals)


def share(counts: Mapping[int, int]) -> tuple[Array, Array]:
    """Return the levels, and the share of steps at each."""
    total = sum(counts.values())
    return np.array(list(counts)), np.array(
        [count / total for count in counts.values()]
    )


def draw_distributions(axes: Axes, run: Result) -> None:
    """Draw the share of steps at each scale: bars are measured, ticks are T3."""
    found = by_interval(run)
    shown = {interval: color for interval, color in SHOWN.items() if interval in found}
    width = 0.8 / max(len(shown), 1)
    ticks: Any = {"color": _style.BLACK, "markersize": 7}
    for place, (interval, color) in enumerate(shown.items()):
        shift = (place - (len(shown) - 1) / 2) * width
        level, height = common(*share(counted(found[interval], "scales")))
        name = f"G = {interval}"
        axes.bar(level + shift, height, width=width, color=color, label=name)
        x, form = theory.of_thresholds(counted(found[interval], "thresholds"), interval)
        x, predicted = common(x, form.levels)
        label = None if place else "theory"
        axes.plot(x + shift, predicted, "_", label=label, **ticks)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="log2 of the loss scale", ylabel="share of steps", ylim=(0, 1))
    axes.legend(loc="upper right", handlelength=1.0)
    _style.label_panel(axes, "c", "Distribution of the scale")


def common(levels: Array, shares: Array) -> tuple[Array, Array]:
    """Return the levels of more than one step in a thousand, and their shares."""
    kept = np.asarray(shares) > RARE
    return np.asarray(levels)[kept], np.asarray(shares)[kept]
