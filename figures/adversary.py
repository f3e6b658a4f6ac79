"""Where a long run of overflows takes the loss scale, and how often histories chosen to hurt kill the parameters."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style, results
from figures.results import Result

DATA = ("adversary",)
COLOR = {"torch": _style.VERMILION, "ampsim": _style.BLUE}
NAME = {"torch": "torch.amp.GradScaler", "ampsim": "ours"}
BOTTOM, TOP = -168, 150  # of the scale axis; scale 0 is drawn as a line that leaves through the bottom


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.2)
    a, b = figure.subplots(1, 2, width_ratios=(1, 1))
    draw_trace(a, run)
    draw_counts(b, run)
    return figure


def draw_trace(axes: Axes, run: Result) -> None:
    """Draw one line per scaler; torch's ends where its parameters do."""
    for record in (record for record in run.records if "trace" in record):
        scaler = record["settings"]["scaler"]
        scale = results.log2(results.in_force(record["trace"], record["trace_steps"]), zero=2.0 * BOTTOM)
        died = record["trace_died"]
        axes.step(np.arange(len(scale)), scale, where="post", color=COLOR[scaler], label=NAME[scaler])
        if died is not None:
            axes.plot(died, BOTTOM + 6, "x", color=COLOR[scaler], markersize=5, clip_on=False)
            axes.annotate(
                "torch: at the first clean step\nthe parameters are lost", (died + 8, BOTTOM + 8), xytext=(255, -92),
                color=COLOR[scaler], fontsize=7, arrowprops={"arrowstyle": "-", "color": COLOR[scaler], "lw": 0.6},
            )  # fmt: skip
    axes.text(60, 2, "overflows", fontsize=7, ha="left", color=_style.GREY)
    axes.text(330, 30, "clean steps", fontsize=7, ha="right", color=_style.GREY)
    for limit, name in ((127, "fp32 max"), (-126, "ours: least"), (-149, "fp32 min")):
        _style.limit_line(axes, limit, name)
    _style.power_ticks(axes.yaxis, range(-150, 101, 50))
    axes.text(395, 60, "ours", fontsize=7, color=COLOR["ampsim"])
    _style.label_panel(axes, "a", "Loss scale in a long run of overflows")
    axes.set(xlabel="step", ylim=(BOTTOM, TOP), xlim=(0, 581))


def draw_counts(axes: Axes, run: Result) -> None:
    """Draw runs lost by family of histories, most first, torch's above ours, on a scale that shows 0."""
    worst = sorted(run.records, key=lambda record: -int(record["corruptions"]))
    families = list(dict.fromkeys(record["settings"]["family"] for record in worst))
    for record in run.records:
        scaler, row, lost = (
            record["settings"]["scaler"],
            families.index(record["settings"]["family"]),
            record["corruptions"],
        )
        y = row + (0.2 if scaler == "ampsim" else -0.2)
        axes.barh(y, lost, height=0.36, color=COLOR[scaler], label=scaler)
        text = f"{lost:,}" if row else f"{lost:,} {NAME[scaler]}"
        axes.text(lost * 1.15 + 0.15, y, text, va="center", fontsize=6.5, color=COLOR[scaler])
    steps = {record["steps"] for record in run.records}
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yticks(range(len(families)), [family.replace(", then", ",\nthen") for family in families])
    axes.tick_params(axis="y", length=0)
    _style.number_ticks(axes.xaxis, [0, 1, 10, 100, 1000, 10000])
    _style.label_panel(axes, "b", "Parameters became inf or NaN")
    axes.set(xlabel=f"times in {steps.pop():,} steps (log)", xlim=(0, 3e5), ylim=(len(families) - 0.5, -0.5))
