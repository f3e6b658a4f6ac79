"""A real fp16 run against T3, which has nothing to fit: how often it skips, where its scale is."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core import theory
from ampsim.core.machine import Rule
from ampsim.records import Record
from figures import _style
from figures.results import Result

DATA = ("theory_real",)
SHOWN = {5: _style.SKY, 20: _style.BLUE, 100: "#003B5C"}  # growth intervals whose distribution is drawn


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.4)
    a, b, c = figure.subplots(1, 3, width_ratios=(1, 1, 1.25))
    draw_rates(a, run)
    draw_means(b, run)
    draw_distributions(c, run)
    return figure


def runs(run: Result) -> dict[int, Record]:
    """The fp16 runs by growth interval."""
    return {int(arm.removeprefix("G=")): run.arm(arm).first for arm in run.arms if "=" in arm}


def steps(record: Record) -> int:
    return sum(count for _, count in record["ceilings"])


def t3(ceilings: Record, growth_interval: int) -> tuple[float, float]:
    """Skip rate and mean log2 scale from the ceilings of a run."""
    x, form = theory.of_ceilings(dict(ceilings["ceilings"]), growth_interval)
    return form.skip_rate, float(x @ form.levels)


def mean_scale(record: Record) -> float:
    return float(sum(level * count for level, count in record["scales"]) / steps(record))


def draw_rates(axes: Axes, run: Result) -> None:
    """Measured, T3 from two sources of ceilings, and T1's bound."""
    found, (reference,) = runs(run), run.arm("fp32")
    grid = np.unique(np.geomspace(min(found), max(found), 40).round().astype(int))
    axes.plot(grid, [theory.skip_rate(Rule(growth_interval=int(g))) for g in grid], color=_style.GREY, label="T1 bound",
              linestyle=(0, (1, 1.5)))  # fmt: skip
    axes.plot(grid, [t3(reference, int(g))[0] for g in grid], color=_style.VERMILION, label="T3, fp32 run's ceilings")
    axes.plot(list(found), [t3(row, g)[0] for g, row in found.items()], "_", color=_style.BLACK, markersize=11,
              label="T3, own ceilings")  # fmt: skip
    measured = [row["skipped"] / steps(row) for row in found.values()]
    axes.plot(list(found), measured, "o", color=_style.BLUE, markersize=3.5, label="fp16 run")
    logarithmic(axes, list(found))
    axes.set(yscale="log", ylabel="skipped steps / steps", ylim=(2e-3, 0.3))
    axes.legend(loc="lower left", handlelength=1.6, borderaxespad=0.2)
    _style.label_panel(axes, "a", "Skip rate")


def draw_means(axes: Axes, run: Result) -> None:
    """Measured, and T3 from two sources of ceilings."""
    found, (reference,) = runs(run), run.arm("fp32")
    grid = np.unique(np.geomspace(min(found), max(found), 40).round().astype(int))
    axes.plot(grid, [t3(reference, int(g))[1] for g in grid], color=_style.VERMILION, label="fp32")
    axes.plot(
        list(found), [t3(row, g)[1] for g, row in found.items()], "_", color=_style.BLACK, markersize=11, label="own"
    )
    axes.plot(
        list(found), [mean_scale(row) for row in found.values()], "o", color=_style.BLUE, markersize=3.5, label="run"
    )
    logarithmic(axes, list(found))
    axes.set(ylabel="log2 of the scale", ylim=(17.9, 19.2))
    _style.label_panel(axes, "b", "Mean log2 scale")


def logarithmic(axes: Axes, intervals: list[int]) -> None:
    axes.set(xscale="log", xlabel="growth interval G", xlim=(4.2, 120))
    axes.set_xticks(intervals, [str(g) for g in intervals])
    axes.minorticks_off()


def draw_distributions(axes: Axes, run: Result) -> None:
    """Share of steps at each scale: bars measured, ticks T3; behind, the ceilings of the float32 run."""
    found, (reference,) = runs(run), run.arm("fp32")
    level, count = zip(*reference["ceilings"], strict=True)
    axes.bar(level, np.array(count) / steps(reference), width=0.96, color="#E6E6E6", label="ceilings")
    width = 0.8 / len(SHOWN)
    for place, (interval, color) in enumerate(SHOWN.items()):
        shift = (place - (len(SHOWN) - 1) / 2) * width
        level, count = zip(*found[interval]["scales"], strict=True)
        axes.bar(np.array(level) + shift, np.array(count) / steps(found[interval]), width=width, color=color,
                 label=f"G={interval}")  # fmt: skip
        x, form = theory.of_ceilings(dict(found[interval]["ceilings"]), interval)
        axes.plot(x + shift, form.levels, "_", color=_style.BLACK, markersize=7, label=f"T3 G={interval}")
    ticks = range(16, 22)
    axes.set_xticks(ticks, [_style.power_of_two(k) for k in ticks])
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="loss scale", ylabel="share of steps", xlim=(15.4, 21.6), ylim=(0, 0.95))
    for row, (text, color) in enumerate([("ceilings", "#8A8A8A"), *((f"G = {g}", c) for g, c in SHOWN.items()),
                                         ("T3 (ticks)", _style.BLACK)]):  # fmt: skip
        axes.text(0.02, 0.97 - 0.085 * row, text, color=color, transform=axes.transAxes, va="top", fontsize=7)
    _style.label_panel(axes, "c", "Where the scale is")
