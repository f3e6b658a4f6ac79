"""Training with one fixed loss scale: a plateau between two cliffs, and the measurements that predict
where the cliffs are.
"""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.formats import FP16
from figures import _style, _training, results
from figures.results import ArmRecords, Result

DATA = ("static_sweep", "sigmoid_underflow")
ZERO, SKIPPED, SWEPT = _style.VERMILION, _style.PURPLE, _style.GREEN
DASHED = (0, (2.5, 1.5))
NEAR = 0.05  # nats above float32 that still count as the plateau
EDGE = -12  # log2 of a scale on the left cliff, where numbers are given
ERRORS = {"backward_error": _style.BLACK, "rounded_error": _style.GREY}
ARROW = {"arrowstyle": "->", "linewidth": 0.7, "color": _style.GREY, "shrinkB": 1}


def plot(run: Result, sigmoid: Result) -> Figure:
    logs = np.array(run.config["static_log2"], dtype=np.float64)
    figure = _style.new_figure(_style.TWO_COLUMNS, 3.4)
    (a, c), (b, d) = figure.subplots(2, 2, sharex=True)
    draw_losses(a, run, "test_loss")
    name_cliffs(a, run)
    draw_lost(b, run, logs)
    draw_errors(c, run, logs)
    draw_losses(d, sigmoid, "train_loss")
    d.text(max(static(sigmoid)) + 0.8, 1.5, f"not run\nabove {_style.power_of_two(max(static(sigmoid)))}", fontsize=7,
           color=_style.GREY)  # fmt: skip
    for axes, letter, title in (
        (a, "a", "Test loss, residual network"),
        (b, "b", "Zeros and skipped steps in a"),
        (c, "c", "Gradient error at the same weights"),
        (d, "d", "Training loss, sigmoid network"),
    ):
        _style.label_panel(axes, letter, title)
    for axes in (b, d):
        _style.power_ticks(axes.xaxis, range(-16, 25, 8))
        axes.set(xlabel="fixed loss scale", xlim=(logs.min() - 1, logs.max() + 1))
    return figure


def static(run: Result) -> dict[float, ArmRecords]:
    """Return the runs of each fixed scale by its log2."""
    arms = run.where(dtype="float16", growth_interval=None)
    return {math.log2(arm.settings["init_scale"]): arm for arm in arms}


def untrained(run: Result) -> float:
    """Return the mean loss of the first step."""
    return float(np.mean([record["loss"][0] for record in run.records]))


def draw_losses(axes: Axes, run: Result, column: str) -> None:
    """Draw each seed as a thin line, their mean as a thick one; float32 and the dynamic scale as lines across."""
    runs = static(run)
    ends = np.array([rows.column(column) for rows in runs.values()])
    axes.plot(
        list(runs),
        ends,
        color=SWEPT,
        linewidth=0.4,
        alpha=0.6,
        marker="o",
        markersize=2,
        markeredgewidth=0,
    )
    axes.plot(list(runs), ends.mean(axis=1), color=SWEPT, linewidth=1.6, label="mean")
    usual = _training.by_role(run)
    levels = {role: usual[role].mean(column) for role in ("fp32", "dynamic")}
    places = _style.spread(list(levels.values()), 0.24)
    for (role, level), place, style in zip(levels.items(), places, (DASHED, "-"), strict=True):
        color = _training.color(usual[role])
        axes.axhline(
            level, color=color, linewidth=0.8, linestyle=style, zorder=0, label=usual[role].name
        )
        _style.label_right(axes, level, place, role, color)
    top = untrained(run)
    _style.limit_line(axes, top, "untrained")
    axes.axhline(0, color=_style.GREY, linewidth=0.5)
    draw_plateau(
        axes,
        [k for k, seeds in zip(runs, ends, strict=True) if seeds.mean() < levels["fp32"] + NEAR],
    )
    title = column.replace("_", "ing " if column == "train_loss" else " ")
    axes.set(ylabel=f"{title} (nats)", ylim=(-0.6, 1.12 * top))
    axes.set_yticks(np.arange(0, top, 0.5))


def draw_plateau(axes: Axes, good: list[float]) -> None:
    """Draw how many bits there are to choose from, below the curve."""
    if len(good) > 1:
        arrow = {
            "arrowstyle": "<->",
            "linewidth": 0.8,
            "color": SWEPT,
            "shrinkA": 0,
            "shrinkB": 0,
            "mutation_scale": 7,
        }
        axes.annotate("", (good[0], -0.2), (good[-1], -0.2), arrowprops=arrow)
        axes.text(
            (good[0] + good[-1]) / 2,
            -0.27,
            f"{good[-1] - good[0]:g} bits",
            color=SWEPT,
            ha="center",
            va="top",
        )


def name_cliffs(axes: Axes, run: Result) -> None:
    """Draw an arrow to the first and to the last place where the mean is halfway between float32 and untrained."""
    runs = static(run)
    ends = np.array([rows.mean("test_loss") for rows in runs.values()])
    level = (run.arm("fp32").mean("test_loss") + untrained(run)) / 2
    places = crossings(np.array(list(runs)), ends, level)
    for text, place, away in (
        ("left cliff:\ngradients\nunderflow", places[:1], 7.5),
        ("right cliff:\nsteps are\nskipped", places[1:][-1:], -8.5),
    ):
        for x in place:
            axes.annotate(text, (x, level), (x + away, 1.15 * level), ha="center", va="center", color=_style.GREY,
                          arrowprops=ARROW)  # fmt: skip


def crossings(x: results.Array, y: results.Array, level: float) -> list[float]:
    """Return where straight lines through the points cross `level`."""
    above = y > level
    return [
        float(x[i] + (level - y[i]) / (y[i + 1] - y[i]) * (x[i + 1] - x[i]))
        for i in np.flatnonzero(np.diff(above))
    ]


def draw_lost(axes: Axes, run: Result, logs: results.Array) -> None:
    """Draw shares over a whole run; dashed, what rounding the gradients of the arm fp32 would have lost."""
    runs = static(run)
    zero = np.array([[100 * np.mean(record["zero"]) for record in rows] for rows in runs.values()])
    skipped = np.array(
        [[100 * skips / run.steps for skips in rows.skips()] for rows in runs.values()]
    )
    truth = run.arm("fp32")
    rounded = 100 * np.mean([record["rounded_zero"] for record in truth], axis=(0, 1))
    largest = np.array([record["largest"] for record in truth])
    over = np.array([100 * np.mean(largest * 2.0**k >= FP16.overflow_threshold) for k in logs])
    for name, shares, expected, color in (
        ("zero", zero, rounded, ZERO),
        ("skipped", skipped, over, SKIPPED),
    ):
        axes.fill_between(
            logs, shares.min(axis=1), shares.max(axis=1), color=color, alpha=0.18, linewidth=0
        )
        axes.plot(logs, shares.mean(axis=1), color=color, label=name)
        axes.plot(
            logs,
            expected,
            color=color,
            linestyle=DASHED,
            linewidth=0.9,
            label=f"{name} by rounding",
        )
    axes.text(-11.5, 80, "zero\nelements", color=ZERO, va="center")
    axes.text(15.5, 80, "skipped\nsteps", color=SKIPPED, ha="right", va="center")
    axes.text(
        3,
        22,
        "dashed: gradients of fp32,\nrounded to fp16",
        color=_style.GREY,
        ha="center",
        va="center",
    )
    axes.set(ylabel="share (%)", ylim=(-3, 106))
    axes.set_yticks(range(0, 101, 25))


def draw_errors(axes: Axes, run: Result, logs: results.Array) -> None:
    """Draw the relative error of fp16's gradient where the arm fp32 went; bands from tenth to tenth."""
    truth = run.arm("fp32")
    for column, color in ERRORS.items():
        errors = np.array([record[column] for record in truth], dtype=np.float64).reshape(
            -1, len(logs)
        )
        fits = np.isfinite(errors).all(axis=0)
        low, middle, high = 100 * np.quantile(errors[:, fits], (0.1, 0.5, 0.9), axis=0)
        axes.fill_between(logs[fits], low, high, color=color, alpha=0.16, linewidth=0)
        style = "-" if color == _style.BLACK else DASHED
        axes.plot(logs[fits], middle, color=color, linestyle=style, label=column)
    at = list(logs).index(EDGE)
    zero = 100 * np.mean([record["backward_zero"] for record in truth], axis=(0, 1))[at]
    error = 100 * float(np.median([np.array(record["backward_error"])[:, at] for record in truth]))
    text = f"at {_style.power_of_two(EDGE)}, {zero:.0f} % of the elements\nare 0 and the error is {error:.0f} %"
    axes.annotate(text, (EDGE, error), (-6.5, 70), va="center", arrowprops=ARROW)
    axes.text(4, 5, "backward pass", va="center", ha="center")
    axes.text(4, 0.06, "one rounding", color=_style.GREY, va="center", ha="center")
    axes.text(20.5, 0.8, "infinite:\nnot shown", color=_style.GREY, va="center", ha="center")
    axes.set(ylabel="relative error (%)", yscale="log", ylim=(0.01, 200))
    _style.number_ticks(axes.yaxis, [0.01, 0.1, 1, 10, 100])
