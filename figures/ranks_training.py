"""With a fused optimizer on two ranks, torch's scaler leads to inf or NaN; ampsim's does not.

Loss scales of fp16 training where gradient elements become inf, on the ranks that the dotted lines
name. The parameters are sharded by hand. A cross marks the step from which parameters (a) or the
loss (b) are not finite. In b, torch's ranks divide by different scales. The lines are of the first
seed. Under FSDP2, and with an optimizer that is not fused, all four lines are equal and are not
shown.
"""

from collections.abc import Mapping
from math import isnan
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ampsim.core.json_lines import Record
from figures import _style, results
from figures.results import Result

DATA = ("ranks_training",)
ALT = "Two panels of loss scales by rank: ampsim's lines stay level, torch's fall or part and end in crosses"
WAYS = {
    "unscale_, fused": "with unscale_",
    "fused": "without unscale_",
}
OF = {"torch": "torch", "ours": "ampsim"}
CROSS: dict[str, Any] = {
    "marker": "x",
    "color": _style.VERMILION,
    "linestyle": "",
    "markersize": 6,
    "markeredgewidth": 1.8,
}
PLANTED: Mapping[str, Any] = {"on_rank_0": 0, "on_rank_1": 1, "on_both": "both"}
LINES: Mapping[
    tuple[str, int], dict[str, Any]
] = {  # by scaler and rank; ampsim lies beneath
    ("ours", 0): {"color": _style.SKY, "linewidth": 3.2},
    ("ours", 1): {"color": _style.BLUE, "linewidth": 1.8},
    ("torch", 0): {"color": _style.VERMILION, "linewidth": 1.0},
    ("torch", 1): {"color": _style.BLACK, "linewidth": 0.9, "linestyle": (0, (2, 2))},
}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.ONE_COLUMN, 2.1)
    row_of_axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for letter, axes, (way, title) in zip("ab", row_of_axes, WAYS.items(), strict=True):
        rows = run.records[:1]  # the first seed
        runs = [each for row in rows for each in row["runs"] if each["way"] == way]
        by_scaler = {each["scaler"]: each["ranks"] for each in runs}
        if by_scaler:
            draw(axes, by_scaler)
        mark_planted(axes, run)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda log2, _: _style.power_of_two(log2))
        )
        axes.set(xlim=(0, run.steps + 5))
        axes.margins(y=0.13)
        _style.label_panel(axes, letter, title)
        axes.set_xlabel("step")
    row_of_axes[0].set_ylabel("loss scale")
    handles, labels = row_of_axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], **CROSS))
    figure.legend(
        handles,
        [*labels, "not finite from here"],
        loc="outside lower left",
        ncols=2,
        handlelength=1.6,
        columnspacing=1.0,
        borderpad=0,
        borderaxespad=0.2,
    )
    return figure


def draw(axes: Axes, by_scaler: Mapping[str, list[Record]]) -> None:
    """Draw the scales of a seed, a line per scaler and rank."""
    for (scaler, rank), style in LINES.items():
        columns = by_scaler[scaler][rank]
        changes = columns["scale_changes"]
        steps = len(columns["loss"])
        scales = np.log2(results.in_force(changes, steps))
        named = {**style, "label": label(scaler, rank)}
        axes.step(range(steps), scales, where="post", **named)
        if (start := lost(columns)) is not None:
            axes.plot(start, scales[start], zorder=5, **CROSS)


def lost(columns: Record) -> int | None:
    """Return the first step with parameters, or else a loss, that are not finite."""
    steps = columns["not_finite"] or [
        step for step, loss in enumerate(columns["loss"]) if isnan(loss)
    ]
    return int(steps[0]) if steps else None


def label(scaler: str, rank: int) -> str:
    """Return the name of a line."""
    return f"{OF[scaler]}, rank {rank}"


def mark_planted(axes: Axes, run: Result) -> None:
    """Draw a line where an element was made inf, named by the rank."""
    for name, text in PLANTED.items():
        axes.axvline(
            run.config[name],
            color=_style.GREY,
            linewidth=0.7,
            linestyle=(0, (1, 1.5)),
            zorder=0,
        )
        axes.text(
            run.config[name],
            1.0,
            f" {text}",
            transform=axes.get_xaxis_transform(),
            va="top",
            fontsize=7,
        )
