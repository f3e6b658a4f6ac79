"""Public logs of large fp16 runs: the state machine reproduces the scales that they print.

a, b: dots are printed scales; the line is the state machine. c: each bar spans the minimum and
maximum number of overflows between the first and last line of an excerpt; the maximum is the skip
budget. The cross is the number of skipped steps that the log reports.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ampsim.core.json_lines import Record
from figures import _style
from figures.results import Result

DATA = ("public_runs",)


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.3)
    a, b, c = figure.subplots(1, 3, width_ratios=(1, 1, 1.25))
    end = next(row for row in run.records if row["overflow_steps"])
    start = max(
        (row for row in run.records if row["replayed"] is not None),
        key=lambda row: len(row["step"]),
    )
    draw_scales(a, end)
    _style.label_panel(a, "a", end["arm"])
    draw_scales(b, start)
    _style.label_panel(b, "b", start["arm"])
    draw_overflows(c, run)
    _style.label_panel(c, "c", "Overflows")
    return figure


def draw_scales(axes: Axes, row: Record) -> None:
    """Draw printed scales as dots on the state machine's line; ticks are logged overflows."""
    axes.plot(
        row["step"],
        row["replayed"],
        color=_style.BLUE,
        drawstyle="steps-post",
        label="state machine",
    )
    axes.plot(
        row["step"], row["log2_scale"], "o", color=_style.BLACK, markersize=3.5, label="printed"
    )
    named = row["overflow_steps"] or ()
    low = min(row["log2_scale"]) - 1
    if named:
        axes.plot(
            named,
            [low] * len(named),
            "|",
            color=_style.CLASS["overflow"],
            markersize=6,
            label="overflow",
        )
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.ticklabel_format(axis="x", useOffset=False)
    _style.power_ticks(axes.yaxis, range(int(low) + 1, int(max(row["log2_scale"])) + 1, 2))
    axes.set(xlabel="step", ylabel="loss scale")
    axes.legend(loc="best")


def draw_overflows(axes: Axes, run: Result) -> None:
    """Draw each excerpt's range of overflows, and a cross at the skips printed after its first line."""
    rows = run.records
    places = np.arange(len(rows))[::-1]
    for place, row in zip(places, rows, strict=True):
        least, most = sum(window["least"] for window in row["windows"]), row["whole"]["most"]
        axes.plot([least, most], [place, place], color=_style.BLUE, linewidth=4, alpha=0.6)
        axes.plot([sum(row["skips_printed"][1:])], [place], "x", color=_style.BLACK, markersize=4)
    axes.set_yticks(places, [row["arm"] for row in rows])
    _style.draw_rows(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="overflows", xlim=(-0.5, 13))
