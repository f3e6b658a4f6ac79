"""Whole public logs of fp16 training on GPUs: the state machine reproduces every number, and the logs
rule out wrong constants.

a, b: the line is the scale of the state machine at the ends of blocks and at printed overflows; a
dot is a printed overflow. c: the step by which the log rules out a rule that differs from the
configured rule in one setting. Gray: the log does not distinguish the two. White: the two rules are
equal.
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
    "refill: clean": "reset at finite step",
    "refill: backoff": "reset at backoff",
    "first growth one": "first growth off by one",
}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.75)
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.3))
    longest = max(run.records, key=lambda row: row["steps"])
    widest = max(run.records, key=lambda row: float(np.ptp(row["log2_scale"])))
    for letter, axes, row in zip(
        "ab", halves[0].subplots(1, 2, width_ratios=(2.2, 1)), (longest, widest), strict=True
    ):
        draw_scale(axes, row)
        _style.label_panel(axes, letter, row["arm"])
    c = halves[1].subplots()
    draw_rules(c, run)
    _style.label_panel(c, "c", "Ruled out by step")
    return figure


def overflows(row: Mapping[str, Any]) -> list[tuple[float, int, int]]:
    """Return the printed overflows: the step, or the middle of its block, and log2 of the scale before and after."""
    return [
        (step or last - row["every"] / 2, before, after)
        for last, step, before, after in row["events"]
        if after <= before
    ]


def history(row: Mapping[str, Any]) -> list[tuple[float, int]]:
    """Return (step, log2 of the scale) where it is known: ends of blocks and printed overflows."""
    if any(low != high for low, high in row["log2_scale"]):
        raise ValueError(f"{row['arm']}: expected one scale at the end of each block")
    ends = [(float(row["every"] * (n + 1)), low) for n, (low, _) in enumerate(row["log2_scale"])]
    known = [
        point for step, before, after in overflows(row) for point in ((step, before), (step, after))
    ]
    return sorted([*known, *ends], key=lambda point: point[0])


def draw_scale(axes: Axes, row: Mapping[str, Any]) -> None:
    """Draw the state machine's scale where it is known, and a dot per printed overflow."""
    steps, log2_scales = zip(*history(row), strict=True)
    axes.plot(steps, log2_scales, color=_style.BLUE, linewidth=0.6, label="machine")
    met = [(step, before) for step, before, _ in overflows(row)]
    axes.plot(
        *zip(*met, strict=True),
        "o",
        color=_style.CLASS["overflow"],
        markersize=1.6,
        clip_on=False,
        label="overflows",
    )
    _style.power_ticks(
        axes.yaxis,
        range(min(log2_scales), max(log2_scales) + 2, 2 if np.ptp(log2_scales) < 8 else 4),
    )
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
    """Draw a square per log and rule, with the step that rules it out."""
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
