"""A deep sigmoid network in fp16: without a loss scale its gradients underflow and its loss stays at
ln 10.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style, _training
from figures.results import ArmRecords, Result

DATA = ("sigmoid_underflow",)
BLOCK = 25  # steps in one point of a loss curve


def plot(run: Result) -> Figure:
    fixed, dynamic = (kind(run, role) for role in ("fixed", "dynamic"))
    unscaled, every = run.arm("unscaled"), run.config["count_every"]
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.0)
    (a, b, c), (d, e, f) = figure.subplots(2, 3, width_ratios=(1, 1.6, 1))
    draw_losses(a, [unscaled, fixed[-1], run.arm("fp32"), dynamic[0]])
    draw_cliffs(b, run)
    draw_scales(c, dynamic[::-1])
    draw_classes(d, unscaled, every)
    draw_classes(e, dynamic[0], every)
    draw_layers(f, unscaled, dynamic[0], (0, run.steps // 10, run.steps - every))
    _style.label_panel(d, "d", "Gradients, unscaled")
    _style.label_panel(e, "e", "Gradients, dynamic scale")
    name_classes(d, e)
    return figure


def kind(run: Result, role: str) -> list[ArmRecords]:
    """Return the arms of one role, in the order of the file."""
    return [arm for arm in run.arms.values() if _training.role(arm) == role]


def draw_losses(axes: Axes, arms: Sequence[ArmRecords]) -> None:
    """Draw the median over the seeds; the band reaches from the best to the worst."""
    ends = []
    for arm in arms:
        loss = arm.loss_blocks(BLOCK)
        steps = (np.arange(loss.shape[1]) + 0.5) * BLOCK
        color = _training.color(arm)
        axes.fill_between(
            steps, loss.min(axis=0), loss.max(axis=0), color=color, alpha=0.18, linewidth=0
        )
        axes.plot(steps, np.median(loss, axis=0), color=color, label=arm.name)
        ends.append(float(np.median(loss[:, -1])))
    _style.name_ends(axes, ends, 0.2, map(_training.name, arms), map(_training.color, arms))
    _style.label_panel(axes, "a", "Training loss")
    axes.set(
        xlabel="step",
        ylabel="cross entropy (nats)",
        ylim=(0, 2.6),
        xlim=(0, len(arms[0].first["loss"])),
    )


def draw_cliffs(axes: Axes, run: Result) -> None:
    """Draw where each arm ends: a dot per seed, a bar at the mean."""
    arms = list(run.arms.values())
    places = apart(arms)
    for before, after, arm in zip(places, places[1:], arms[1:], strict=False):
        if _training.role(arm) != "fixed":  # a group begins
            axes.axvline((before + after) / 2, color=_style.GREY, linewidth=0.4)
    for arm, x in zip(arms, places, strict=True):
        final, color = arm.column("train_loss"), _training.color(arm)
        axes.plot(
            [x] * len(final),
            final,
            "o",
            color=color,
            markersize=3,
            markeredgewidth=0,
            label=arm.name,
        )
        axes.plot([x - 0.3, x + 0.3], [np.mean(final)] * 2, color=color, linewidth=1.6)
    axes.set_xticks(places, [tick_label(arm) for arm in arms])
    for text, roles in (("fixed scale", ("unscaled", "fixed")), ("dynamic, G", ("dynamic",))):
        mine = [
            place for arm, place in zip(arms, places, strict=True) if _training.role(arm) in roles
        ]
        axes.annotate(
            text, ((mine[0] + mine[-1]) / 2, 0), xycoords=("data", "axes fraction"), xytext=(0, -17),
            textcoords="offset points", ha="center", va="top", annotation_clip=False,
        )  # fmt: skip
    _style.limit_line(axes, math.log(10), "ln 10")
    _style.label_panel(axes, "b", f"Final loss, {_style.seeds(run)}")
    axes.set(ylabel="training loss (nats)", ylim=(0, 2.6))


def apart(arms: Sequence[ArmRecords]) -> list[float]:
    """Return where each arm stands: one unit apart, with gaps around the fixed scales and room for long numbers."""
    gaps = {"fp32": 0.0, "unscaled": 1.6, "fixed": 1.25, "dynamic": 1.9}
    return [float(x) for x in np.cumsum([gaps[_training.role(arm)] for arm in arms])]


def tick_label(arm: ArmRecords) -> str:
    """Return a fixed scale as a power of two, the G of a dynamic one."""
    if _training.role(arm) == "fp32":
        return "fp32"
    interval = arm.settings["growth_interval"]
    return str(interval) if interval else _style.power_of_two(_training.init_log2(arm))


def draw_scales(axes: Axes, arms: Sequence[ArmRecords]) -> None:
    """Draw each seed as a thin line, the last in full with a tick below for each of its skips."""
    for row, arm in enumerate(arms):
        color = _training.color(arm)
        for record, line in zip(arm, np.log2(arm.scales()), strict=True):
            if record is not arm.records[-1]:
                axes.step(
                    np.arange(len(line)), line, where="post", color=color, linewidth=0.4, alpha=0.45
                )
                continue
            axes.step(
                np.arange(len(line)), line, where="post", color=color, label=arm.name, zorder=3
            )
            skips, height = record["found_inf"], 11.35 - 0.85 * row
            axes.plot(
                skips,
                [height] * len(skips),
                "|",
                color=color,
                markersize=4.5,
                label=f"skips {arm.name}",
            )
            _style.label_right(axes, height, height, _training.long_name(arm, " = "), color)
    axes.text(12, 11.9, "skipped steps", fontsize=7, color=_style.GREY, va="bottom")
    _style.power_ticks(axes.yaxis, range(14, 21, 2))
    _style.label_panel(axes, "c", "Dynamic loss scale")
    axes.set(xlabel="step", ylim=(9.9, 20.6), xlim=(0, len(line)))


def draw_classes(axes: Axes, units: ArmRecords, every: int) -> None:
    """Draw what fp16 made of the gradient's elements, seeds averaged; ticks on top: the last seed's skips."""
    steps, share = units.shares(every, block=4)
    names = ("zero", "subnormal", "normal")
    colors = [_style.CLASS[name] for name in names]
    axes.stackplot(
        steps, [100 * share[name] for name in names], colors=colors, linewidth=0, labels=names
    )
    skips = units.records[-1]["found_inf"]
    axes.plot(
        skips,
        [104] * len(skips),
        "|",
        color=_style.CLASS["overflow"],
        markersize=4.5,
        label="overflow",
    )
    axes.set(
        xlabel="step", ylabel="elements (%)", xlim=(0, len(units.first["loss"])), ylim=(0, 108)
    )
    axes.set_yticks(range(0, 101, 25))


def name_classes(unscaled: Axes, dynamic: Axes) -> None:
    """Write the classes' names on their areas."""
    unscaled.text(780, 33, "zero", color="white", ha="center", va="center")
    unscaled.text(780, 84, "subnormal", color="black", ha="center", va="center")
    unscaled.text(12, 101, "normal", color=_style.GREY, va="bottom", fontsize=7)
    dynamic.text(600, 50, "normal", color="black", ha="center", va="center")
    line = {"arrowstyle": "-", "linewidth": 0.5}
    dynamic.annotate(
        "zero (blank pixels)", (600, 2), (600, 20), ha="center", fontsize=7, arrowprops=line
    )
    _style.label_right(dynamic, 104, 104, "overflow", _style.CLASS["overflow"])


def draw_layers(
    axes: Axes, unscaled: ArmRecords, dynamic: ArmRecords, steps: tuple[int, int, int]
) -> None:
    """Draw the share flushed to zero in each layer, seeds averaged: unscaled at three times, dynamic at the last."""
    color = _training.color(unscaled)
    layers = np.arange(1, len(unscaled.first["elements"]) + 1)
    for step, alpha, x in zip(steps, (0.35, 0.6, 1.0), (2.7, 3.95, 5.85), strict=True):
        zero = 100 * unscaled.zero_by_layer(step).mean(axis=0)
        axes.plot(layers, zero, "o-", markersize=3, color=color, alpha=alpha, label=f"step {step}")
        axes.text(x, 30, str(step), fontsize=7, color=color, va="center", bbox=_style.CLEAR)
    zero = 100 * dynamic.zero_by_layer(step).mean(axis=0)
    axes.plot(layers, zero, "^-", markersize=3, color=_training.color(dynamic), label=dynamic.name)
    axes.text(5.15, 82, "unscaled,\nat step", color=color, va="center")
    _style.label_right(axes, 0, 0, "dynamic", _training.color(dynamic))
    _style.label_panel(axes, "f", "Zero, by layer")
    axes.set(xlabel="layer (from the input)", ylabel="elements (%)", ylim=(0, 108))
    axes.set_xticks(layers)
    axes.set_yticks(range(0, 101, 25))
