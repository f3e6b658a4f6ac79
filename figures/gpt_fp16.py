"""A transformer in fp16 needs no loss scale until its loss is divided by a large global batch."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style, _training
from figures.results import Result

DATA = ("gpt_fp16",)
SHARE = ("fp32", "unscaled", "dynamic")


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.3)
    a, b, c = figure.subplots(1, 3, width_ratios=(1, 1, 1.35))
    arms = _training.by_role(run, "share")
    _training.draw_losses(a, [arms[role] for role in SHARE], alpha=0.45)
    a.set(ylabel="training loss (nats per byte)", ylim=(2.2, 5.8))
    _style.label_panel(a, "a", "Loss: share of a global batch")
    _training.draw_zeros(b, arms)
    _style.label_panel(b, "b", "Zero elements in a")
    draw_ends(c, run)
    return figure


def draw_ends(axes: Axes, run: Result) -> None:
    """Draw where each arm ends: a dot per seed, a bar at the mean; an arrow where that is off the axes."""
    bottom, top = 2.65, 2.9
    shared = [arm.settings["loss"] == "share" for arm in run.arms.values()]
    places = np.arange(len(shared)) + 0.8 * np.array(shared)
    for arm, x in zip(run.arms.values(), places, strict=True):
        final, color = arm.numbers("test_loss"), _training.color(arm)
        axes.plot(
            [x] * len(final),
            final,
            "o",
            color=color,
            markersize=3,
            markeredgewidth=0,
            label=arm.name,
        )
        axes.plot([x - 0.3, x + 0.3], [final.mean()] * 2, color=color, linewidth=1.6)
        if final.min() > top:
            axes.annotate(
                f"{final.mean():.1f}", (x, top), (x, top - 0.025), ha="center", va="top", color=color, fontsize=7,
                arrowprops={"arrowstyle": "->", "color": color, "linewidth": 0.8},
            )  # fmt: skip
    names = [_training.long_name(arm) for arm in run.arms.values()]
    axes.set_xticks(list(places), names, rotation=60, ha="right", rotation_mode="anchor")
    axes.text(places[-2], bottom + 0.01, "as in a", ha="center", color=_style.GREY, fontsize=7)
    _style.label_panel(axes, "c", f"Final loss, {_style.seeds(run)}")
    axes.set(ylabel="test loss (nats per byte)", ylim=(bottom, top))
