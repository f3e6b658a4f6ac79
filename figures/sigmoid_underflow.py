"""A deep sigmoid network in fp16: unscaled it loses its gradients and never leaves ln 10."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.formats import FP16
from figures import _style
from figures.results import ArmRecords, Result

DATA = ("sigmoid_underflow",)
BLOCK = 25  # steps in one point of a loss curve
CURVES = {"unscaled": "unscaled", "static 2^20": "fixed $2^{20}$", "fp32": "fp32", "dynamic G=50": "dynamic"}
SEED = 2  # the seed whose scale and skips are drawn in full
WHEN = {0: 0.35, 200: 0.6, 1995: 1.0}  # steps whose layers are compared, and how dark they are drawn


def plot(run: Result) -> Figure:
    every = run.config["count_every"]
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.0)
    (a, b, c), (d, e, f) = figure.subplots(2, 3, width_ratios=(1, 1.3, 1))
    draw_losses(a, run)
    draw_cliffs(b, run)
    draw_scales(c, run)
    draw_classes(d, run.arm("unscaled"), every)
    draw_classes(e, run.arm("dynamic G=50"), every)
    draw_layers(f, run)
    _style.label_panel(d, "d", "Gradients, unscaled")
    _style.label_panel(e, "e", "Gradients, dynamic scale")
    name_classes(d, e)
    return figure


def draw_losses(axes: Axes, run: Result) -> None:
    """Median over the seeds; the band reaches from the best to the worst."""
    ends = []
    for arm in CURVES:
        loss = run.arm(arm).loss_blocks(BLOCK)
        steps = (np.arange(loss.shape[1]) + 0.5) * BLOCK
        color = _style.ARM[arm]
        axes.fill_between(steps, loss.min(axis=0), loss.max(axis=0), color=color, alpha=0.18, linewidth=0)
        axes.plot(steps, np.median(loss, axis=0), color=color, label=arm)
        ends.append(float(np.median(loss[:, -1])))
    for arm, end, place in zip(CURVES, ends, _style.spread(ends, 0.2), strict=True):
        _style.label_right(axes, end, place, CURVES[arm], _style.ARM[arm])
    _style.label_panel(axes, "a", "Training loss")
    axes.set(xlabel="step", ylabel="cross entropy (nats)", ylim=(0, 2.6), xlim=(0, run.steps))


def draw_cliffs(axes: Axes, run: Result) -> None:
    """Where each arm ends: a dot a seed, a bar at the mean."""
    names = list(run.arms)
    places = dict(zip(names, apart(names), strict=True))
    for arm, x in places.items():
        final = [record["train_loss"] for record in run.arm(arm)]
        color = _style.ARM[arm]
        axes.plot([x] * len(final), final, "o", color=color, markersize=3, markeredgewidth=0, label=arm)
        axes.plot([x - 0.3, x + 0.3], [np.mean(final)] * 2, color=color, linewidth=1.6)
    axes.set_xticks(list(places.values()), [tick_label(arm) for arm in names])
    for text, first, last in (("fixed $2^k$, $k$", "unscaled", "static 2^20"), ("dynamic, $G$", *names[-2:])):
        middle = (places[first] + places[last]) / 2
        axes.annotate(
            text, (middle, 0), xycoords=("data", "axes fraction"), xytext=(0, -17), textcoords="offset points",
            ha="center", va="top", annotation_clip=False,
        )  # fmt: skip
    _style.limit_line(axes, math.log(10), "ln 10")
    _style.label_panel(axes, "b", "Final loss, 5 seeds")
    axes.set(ylabel="training loss (nats)", ylim=(0, 2.6))


def apart(names: list[str]) -> list[float]:
    """Where each arm stands: one unit apart, with gaps around the fixed scales and room for G=2000."""
    gaps = {"fp32": 0.0, "unscaled": 1.6, "dynamic G=50": 1.7, "dynamic G=2000": 1.6}
    return [float(x) for x in np.cumsum([gaps.get(arm, 1.0) for arm in names])]


def tick_label(arm: str) -> str:
    """The k of a fixed scale 2^k, the G of a dynamic one."""
    return {"unscaled": "0", "fp32": "fp32"}.get(arm, arm.removeprefix("static 2^").removeprefix("dynamic G="))


def draw_scales(axes: Axes, run: Result) -> None:
    """Each seed a thin line, one of them in full with a tick below for each of its skips."""
    for row, arm in enumerate(("dynamic G=2000", "dynamic G=50")):
        color = _style.ARM[arm]
        units = run.arm(arm)
        for record, line in zip(units, np.log2(units.scales()), strict=True):
            if record["seed"] != SEED:
                axes.step(np.arange(len(line)), line, where="post", color=color, linewidth=0.4, alpha=0.45)
                continue
            axes.step(np.arange(len(line)), line, where="post", color=color, label=arm, zorder=3)
            skips, height = record["found_inf"], 11.35 - 0.85 * row
            axes.plot(skips, [height] * len(skips), "|", color=color, markersize=4.5, label=f"skips {arm}")
            _style.label_right(axes, height, height, arm.removeprefix("dynamic ").replace("=", " = "), color)
    _style.limit_line(axes, math.log2(FP16.max_finite), "fp16 max")
    axes.text(20, 11.9, "skipped steps", fontsize=7, color=_style.GREY, va="bottom")
    axes.set_yticks(range(14, 21, 2), [_style.power_of_two(k) for k in range(14, 21, 2)])
    _style.label_panel(axes, "c", "Dynamic loss scale")
    axes.set(xlabel="step", ylim=(9.9, 20.6), xlim=(0, run.steps))


def draw_classes(axes: Axes, units: ArmRecords, every: int) -> None:
    """What fp16 made of the gradient's elements, seeds averaged; ticks on top: one seed's overflowed steps."""
    steps, share = units.shares(every, block=4)
    names = ("zero", "subnormal", "normal")
    areas = axes.stackplot(
        steps, [100 * share[name] for name in names], colors=[_style.CLASS[name] for name in names], linewidth=0
    )
    for area, name in zip(areas, names, strict=True):
        area.set_label(name)
    skips = units.seed(SEED)["found_inf"]
    axes.plot(skips, [104] * len(skips), "|", color=_style.CLASS["overflow"], markersize=4.5, label="overflow")
    axes.set(xlabel="step", ylabel="elements (%)", xlim=(0, len(units.first["loss"])), ylim=(0, 108))
    axes.set_yticks(range(0, 101, 25))


def name_classes(unscaled: Axes, dynamic: Axes) -> None:
    """The classes, written on their areas."""
    unscaled.text(1300, 33, "zero", color="white", ha="center", va="center")
    unscaled.text(1300, 84, "subnormal", color="black", ha="center", va="center")
    unscaled.text(20, 101, "normal", color=_style.GREY, va="bottom", fontsize=7)
    dynamic.text(1000, 50, "normal", color="black", ha="center", va="center")
    dynamic.annotate(
        "zero (blank pixels)", (1000, 2), (1000, 20), ha="center", fontsize=7,
        arrowprops={"arrowstyle": "-", "linewidth": 0.5},
    )  # fmt: skip
    _style.label_right(dynamic, 104, 104, "overflow", _style.CLASS["overflow"])


def draw_layers(axes: Axes, run: Result) -> None:
    """Share flushed to zero in each layer, seeds averaged: unscaled at three times, dynamic at the last."""
    unscaled, dynamic = (run.arm(arm) for arm in ("unscaled", "dynamic G=50"))
    layers = np.arange(1, len(unscaled.first["elements"]) + 1)
    for step, alpha in WHEN.items():
        zero = 100 * unscaled.zero_by_layer(step).mean(axis=0)
        axes.plot(layers, zero, "o-", markersize=3, color=_style.ARM["unscaled"], alpha=alpha, label=f"step {step}")
    zero = 100 * dynamic.zero_by_layer(step).mean(axis=0)
    axes.plot(layers, zero, "^-", markersize=3, color=_style.ARM["dynamic G=50"], label="dynamic G=50")
    for text, x, y in (("0", 2.7, 30), ("200", 4.45, 30), ("1995", 6.1, 30)):
        axes.text(x, y, text, fontsize=7, color=_style.ARM["unscaled"], va="center")
    axes.text(5.15, 82, "unscaled,\nat step", color=_style.ARM["unscaled"], va="center")
    _style.label_right(axes, 0, 0, "dynamic", _style.ARM["dynamic G=50"])
    _style.label_panel(axes, "f", "Flushed to zero, by layer")
    axes.set(xlabel="layer (1: next to the input)", ylabel="elements (%)", ylim=(0, 108))
    axes.set_xticks(layers)
    axes.set_yticks(range(0, 101, 25))
