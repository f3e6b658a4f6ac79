"""Once the forward pass overflows, every step is skipped and the loss scale halves to zero.

a: the loss scale of each seed, by learning rate. b: the skipped steps of each run; a bar starts
where all later steps are skipped. c: the largest activation at the highest learning rate, in fp16
and float32.
"""

import math
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.formats import FP16
from figures import _style, results
from figures.results import ArmRecords, Result

DATA = ("scale_crash",)
ALT = "Loss scales that fall in straight lines, rows of skipped steps, and growing activations"
LR = (
    "#56B4E9",
    "#0072B2",
    "#E69F00",
    "#D55E00",
    "#7A1F3D",
)  # learning rates, low to high
SMALLEST_FLOAT32 = 2.0**-149


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.5)
    a, b, c = figure.subplots(1, 3, width_ratios=(1, 1.2, 1))
    draw_scales(a, run)
    draw_skips(b, run)
    draw_streams(c, run)
    return figure


def rates(run: Result) -> dict[float, tuple[ArmRecords, str]]:
    """Return the fp16 arm and its colour by learning rate, low to high."""
    arms = run.where(dtype="float16")
    return {
        arm.settings["lr"]: (arm, color)
        for arm, color in zip(arms, cycle(LR), strict=False)
    }


def draw_scales(axes: Axes, run: Result) -> None:
    """Draw one line per seed; a line ends where its scale becomes 0."""
    for lr, (arm, color) in rates(run).items():
        for scale in arm.scales():
            log2 = results.log2(scale, zero=np.nan)
            axes.step(
                np.arange(len(log2)),
                log2,
                where="post",
                color=color,
                linewidth=0.9,
                label=f"{lr:g}",
            )
    limits = {
        "fp16 max": FP16.max_finite,
        "fp16 min": FP16.smallest_subnormal,
        "fp32 min": SMALLEST_FLOAT32,
    }
    for name, limit in limits.items():
        _style.limit_line(axes, math.log2(limit), name)
    _style.power_ticks(axes.yaxis, range(0, -151, -50))
    _style.label_panel(axes, "a", "Dynamic loss scale")
    axes.set(xlabel="step", ylabel="loss scale", ylim=(-160, 28), xlim=(0, run.steps))


def draw_skips(axes: Axes, run: Result) -> None:
    """Draw a row per run: ticks are skipped steps; a bar starts at a crash, after which all are
    skipped.
    """
    row = 0.0
    centres = []
    for units, color in rates(run).values():
        for record in units:
            steps = len(record["loss"])
            crash = steps if record["crash_step"] is None else record["crash_step"]
            skips = [step for step in record["found_inf"] if step < crash]
            axes.vlines(skips, row - 0.38, row + 0.38, color=color, linewidth=0.8)
            if crash < steps:
                axes.barh(
                    row,
                    steps - crash,
                    left=crash,
                    height=0.76,
                    color=color,
                    linewidth=0,
                )
            row += 1
        centres.append(row - (len(units) + 1) / 2)
        _style.label_right(
            axes,
            centres[-1],
            centres[-1],
            f"{units.known('crash_step')} of {len(units)}",
            color,
        )
        row += 0.8
    axes.set_yticks(centres, [f"{lr:g}" for lr in rates(run)])
    axes.tick_params(axis="y", length=0)
    _style.label_panel(axes, "b", "Skipped steps and crashes")
    axes.set(
        xlabel="step",
        ylabel="learning rate",
        ylim=(row - 0.8, -0.8),
        xlim=(0, run.steps),
    )


def draw_streams(axes: Axes, run: Result) -> None:
    """Draw the largest activation at the highest rate, fp16 and fp32, up to where it is no longer a
    number.
    """
    lr = max(rates(run))
    fp16, crash_color = rates(run)[lr]
    drawn = [("fp32", arm, _style.BLACK) for arm in run.where(dtype="float32", lr=lr)]
    for precision, units, color in [*drawn, ("fp16", fp16, crash_color)]:
        for record in units:
            stream = np.array(record["stream_max"], dtype=np.float64)
            steps = np.arange(len(stream))
            end = len(stream) if record["crash_step"] is None else record["crash_step"]
            axes.plot(
                steps[:end], stream[:end], color=color, linewidth=0.8, label=precision
            )
            if end < len(stream):
                axes.plot(
                    steps[end - 1],
                    stream[end - 1],
                    "x",
                    color=color,
                    markersize=4,
                    label="crash",
                )
    axes.set_yscale("log")
    for x, y, text, color in (
        (0.05, 0.66, "fp32", _style.BLACK),
        (0.27, 0.06, "fp16, up to the crash", crash_color),
    ):
        axes.text(x, y, text, transform=axes.transAxes, color=color, fontsize=7)
    _style.limit_line(axes, FP16.max_finite, "fp16 max")
    _style.label_panel(axes, "c", f"Max activation, lr {lr:g}")
    axes.set(xlabel="step", ylabel="max |h|", xlim=(0, run.steps))
