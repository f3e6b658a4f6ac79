"""Whole public logs of fp16 training on GPUs: the machine goes through every number, wrong constants do not.

a, b: the line is the machine, dots are printed overflows; they hide where they came in ten steps. c: by which step a
rule that differs in one thing from the one that was set is refuted; grey: the log does not tell them apart; white: it
would be the same.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import _style
from figures.results import Result

DATA = ("whole_logs",)
HYSTERESES, SHARES = (1, 2, 3), (0.5, 0.9, 0.99, 1.01, 1.1, 2.0)  # of the interval that was set
OTHERS = {
    "refill: clean": "refill at clean step",
    "refill: backoff": "refill at backoff",
    "first growth one": "first growth one off",
}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 3.0)
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.3))
    longest = max(run.records, key=lambda row: row["steps"])
    widest = max(run.records, key=lambda row: float(np.ptp(row["log2_scale"])))
    for letter, axes, row in zip("ab", halves[0].subplots(1, 2, width_ratios=(2.2, 1)), (longest, widest), strict=True):
        draw_scale(axes, row)
        _style.label_panel(axes, letter, row["arm"])
    c = halves[1].subplots()
    draw_rules(c, run)
    _style.label_panel(c, "c", "Refuted by step")
    return figure


def draw_scale(axes: Axes, row: Mapping[str, Any]) -> None:
    """Draw the machine's scale at each line, and a dot per printed overflow at the scale that it met."""
    lines = [row["every"] * (n + 1) for n in range(len(row["log2_scale"]))]
    low, high = zip(*row["log2_scale"], strict=True)
    axes.fill_between(lines, low, high, step="post", color=_style.SKY, alpha=0.5, linewidth=0)
    axes.plot(lines, low, color=_style.BLUE, drawstyle="steps-post", linewidth=0.7)
    met = [(step or last, before) for last, step, before, after in row["events"] if after <= before]
    axes.plot(*zip(*met, strict=True), "o", color=_style.CLASS["overflow"], markersize=1.6)
    _style.power_ticks(axes.yaxis, range(min(low), max(high) + 2, 2))
    axes.set(xlabel="step", ylabel="loss scale", xlim=(0, row["steps"]))


def columns(row: Mapping[str, Any]) -> dict[str, str]:
    """Return how the names of the rules begin that may have been tried on a log, and their labels, in one order."""
    interval = row["settings"]["growth_interval"]
    return {
        **{f"H={h}": f"H = {h}" for h in HYSTERESES},
        **{f"G={round(share * interval)}": f"G {100 * (share - 1):+.0f} %" for share in SHARES},
        **OTHERS,
    }


def verdict(row: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return the verdict on the rule whose name begins so, if it was tried on this log."""
    return next((found for key, found in row["rules"].items() if key.startswith(name)), None)


def draw_rules(axes: Axes, run: Result) -> None:
    """Draw a square per log and rule, with the step that refutes it."""
    for y, row in enumerate(run.records):
        for x, name in enumerate(columns(row)):
            if (found := verdict(row, name)) is None:
                continue
            color = "#E6E6E6" if found["refuted"] is None else "#F2A65A"
            axes.add_patch(Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, color=color, linewidth=0))
            axes.text(x, y, found["refuted"] or "", ha="center", va="center", fontsize=6)
    labels = list(columns(run.records[0]).values())
    axes.set(xlim=(-0.5, len(labels) - 0.5), ylim=(len(run.records) - 0.4, -0.6))
    axes.set_xticks(range(len(labels)), labels, rotation=25, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(run.records)), [row["arm"] for row in run.records])
    axes.tick_params(length=0, labelsize=6)
    for spine in axes.spines.values():
        spine.set_visible(False)
