"""A transformer in fp16: it needs no loss scale until its loss is divided by a large global batch."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style
from figures.results import Result

DATA = ("gpt_fp16",)
BLOCK = 10  # steps in one point of a loss curve
MEAN = {
    "fp32": "fp32",
    "bf16": "bf16",
    "unscaled": "unscaled",
    "static 2^16": "fixed $2^{16}$",
    "dynamic G=50": "dynamic",
}
GLOBAL = {"global fp32": "fp32", "global unscaled": "unscaled", "global dynamic": "dynamic"}
ZEROS = {"global unscaled": "unscaled", "global fp32": "fp32,\nrounded", "global dynamic": "dynamic"}
SCALES = {"init 2^32": "from $2^{32}$", "dynamic G=50": "G = 50", "dynamic G=200": "G = 200",
          "dynamic G=2000": "G = 2000", "init 2^8": "from $2^8$", "sum": "sum"}  # fmt: skip
COLOR = {
    **_style.ARM,
    "bf16": _style.GREY,
    "dynamic G=200": "#2E93C9",  # between those of G=50 and G=2000
    "init 2^8": _style.GREEN,
    "init 2^32": _style.ORANGE,
    "sum": _style.PURPLE,
    "global fp32": _style.BLACK,
    "global unscaled": _style.VERMILION,
    "global dynamic": _style.BLUE,
}
TICKS = {
    "static 2^16": "fixed $2^{16}$", "dynamic G=50": "G=50", "dynamic G=200": "G=200", "dynamic G=2000": "G=2000",
    "init 2^8": "from $2^8$", "init 2^32": "from $2^{32}$", "global fp32": "fp32", "global unscaled": "unscaled",
    "global dynamic": "G=50",
}  # fmt: skip


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.2)
    axes = figure.subplot_mosaic([["a", "a", "b", "b", "c", "c"], ["d", "d", "d", "e", "e", "e"]])
    draw_losses(axes["a"], run, MEAN)
    draw_losses(axes["b"], run, GLOBAL)
    draw_zeros(axes["c"], run)
    draw_scales(axes["d"], run)
    draw_ends(axes["e"], run)
    _style.label_panel(axes["a"], "a", "Loss: mean over a batch")
    _style.label_panel(axes["b"], "b", "Loss: share of $2^{22}$ tokens")
    return figure


def draw_losses(axes: Axes, run: Result, names: dict[str, str]) -> None:
    """Each seed a thin line, their mean a thick one."""
    ends = []
    for arm in names:
        loss = run.arm(arm).loss_blocks(BLOCK)
        steps = (np.arange(loss.shape[1]) + 0.5) * BLOCK
        axes.plot(steps, loss.T, color=COLOR[arm], linewidth=0.4, alpha=0.45)
        axes.plot(steps, loss.mean(axis=0), color=COLOR[arm], label=arm)
        ends.append(float(loss[:, -1].mean()))
    for arm, end, place in zip(names, ends, _style.spread(ends, 0.24), strict=True):
        _style.label_right(axes, end, place, names[arm], COLOR[arm])
    axes.set(xlabel="step", ylabel="training loss (nats a byte)", ylim=(2.2, 5.8), xlim=(0, run.steps))


def draw_zeros(axes: Axes, run: Result) -> None:
    """Share of the gradient's elements that are zero in fp16, of all parameters, seeds averaged."""
    ends = []
    for arm in ZEROS:
        rows = run.arm(arm)
        zero = 100 * rows.numbers("zero").mean(axis=0)
        axes.plot(rows.first["counted_steps"], zero, color=COLOR[arm], label=arm)
        ends.append(float(zero[-1]))
    for arm, end, place in zip(ZEROS, ends, _style.spread(ends, 14), strict=True):
        _style.label_right(axes, end, place, ZEROS[arm], COLOR[arm])
    _style.label_panel(axes, "c", "Gradients of b that are 0")
    axes.set(xlabel="step", ylabel="elements (%)", ylim=(-2, 104), xlim=(0, run.steps))
    axes.set_yticks(range(0, 101, 25))


def draw_scales(axes: Axes, run: Result) -> None:
    """Each seed a thin line, the first of them thick."""
    ends = []
    for arm in SCALES:
        lines = np.log2(run.arm(arm).scales())
        for seed, line in reversed(list(enumerate(lines))):
            first = seed == 0
            axes.step(
                np.arange(len(line)), line, where="post", color=COLOR[arm], linewidth=1.2 if first else 0.4,
                alpha=1.0 if first else 0.45, label=arm if first else f"other seed {arm}",
            )  # fmt: skip
        ends.append(float(lines[0][-1]))
    for arm, end, place in zip(SCALES, ends, _style.spread(ends, 2.1), strict=True):
        _style.label_right(axes, end, place, SCALES[arm], COLOR[arm])
    axes.set_yticks(range(8, 33, 4), [_style.power_of_two(k) for k in range(8, 33, 4)])
    _style.label_panel(axes, "d", "Dynamic loss scale")
    axes.set(xlabel="step", ylim=(6, 33), xlim=(0, run.steps))


def draw_ends(axes: Axes, run: Result) -> None:
    """Where each arm ends: a dot a seed, a bar at the mean; an arrow where that is off the axes."""
    names = run.arms
    bottom, top = 2.5, 2.7
    places = np.arange(len(names)) + [0.8 * arm.startswith("global") for arm in names]
    for arm, x in zip(names, places, strict=True):
        final = run.arm(arm).numbers("test_loss")
        axes.plot([x] * len(final), final, "o", color=COLOR[arm], markersize=3, markeredgewidth=0, label=arm)
        axes.plot([x - 0.3, x + 0.3], [final.mean()] * 2, color=COLOR[arm], linewidth=1.6)
        if final.min() > top:
            axes.annotate(
                f"{final.mean():.1f}", (x, top), (x, top - 0.025), ha="center", va="top", color=COLOR[arm], fontsize=7,
                arrowprops={"arrowstyle": "->", "color": COLOR[arm], "linewidth": 0.8},
            )  # fmt: skip
    axes.set_xticks(
        list(places), [TICKS.get(arm, arm) for arm in names], rotation=60, ha="right", rotation_mode="anchor"
    )
    axes.text(places[-2], bottom + 0.01, "as in b", ha="center", color=_style.GREY, fontsize=7)
    _style.label_panel(axes, "e", "Final loss, 3 seeds")
    axes.set(ylabel="test loss (nats a byte)", ylim=(bottom, top))
