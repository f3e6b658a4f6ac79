"""A residual network in fp16: no scale is needed, one fixed too high hurts, a share of a large batch needs one."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style, gpt_fp16
from figures.gpt_fp16 import COLOR, GLOBAL, TICKS
from figures.results import Result

DATA = ("resnet_fp16",)
BLOCK = 10  # steps in one point of a loss curve
MEAN = {"static 2^16": "fixed $2^{16}$", "fp32": "fp32", "unscaled": "unscaled", "dynamic G=50": "dynamic"}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.6)
    halves = figure.add_gridspec(2, 1, height_ratios=(1, 1.2))
    top, bottom = halves[0].subgridspec(1, 3), halves[1].subgridspec(1, 3, width_ratios=(1.5, 1.2, 1))
    a, b, c = (figure.add_subplot(top[column]) for column in range(3))
    d, e = (figure.add_subplot(bottom[column]) for column in range(2))
    f = figure.add_subplot(bottom[2], sharey=e)
    draw_losses(a, run, MEAN)
    draw_losses(b, run, GLOBAL)
    gpt_fp16.draw_zeros(c, run)
    gpt_fp16.draw_scales(d, run)
    draw_ends(e, run)
    draw_wrong(f, run)
    _style.label_panel(a, "a", "Loss: mean over a batch")
    _style.label_panel(b, "b", "Loss: share of $2^{20}$ images")
    return figure


def draw_losses(axes: Axes, run: Result, names: dict[str, str]) -> None:
    """Each seed a thin line, their mean a thick one."""
    ends = []
    for arm in names:
        loss = run.arm(arm).loss_blocks(BLOCK)
        steps = (np.arange(loss.shape[1]) + 0.5) * BLOCK
        axes.plot(steps, loss.T, color=COLOR[arm], linewidth=0.4, alpha=0.6)
        axes.plot(steps, loss.mean(axis=0), color=COLOR[arm], label=arm)
        ends.append(float(loss[:, -1].mean()))
    for arm, end, place in zip(names, ends, _style.spread(ends, 0.24), strict=True):
        _style.label_right(axes, end, place, names[arm], COLOR[arm])
    axes.set(xlabel="step", ylabel="training loss (nats)", ylim=(0, 2.6), xlim=(0, run.steps))


def rows_of(axes: Axes, run: Result) -> dict[str, float]:
    """Arm -> its height, the first on top; the arms of the global batch stand apart."""
    names = run.arms
    places = {arm: n + 0.9 * arm.startswith("global") for n, arm in enumerate(names)}
    axes.set_yticks(list(places.values()), [TICKS.get(arm, arm) for arm in names])
    axes.set_ylim(max(places.values()) + 0.6, -0.6)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    return places


def draw_column(axes: Axes, run: Result, values: dict[str, list[float]]) -> None:
    """A row an arm: a dot a seed, a bar at the mean."""
    for arm, y in rows_of(axes, run).items():
        axes.plot(values[arm], [y] * len(values[arm]), "o", color=COLOR[arm], markersize=3, markeredgewidth=0,
                  alpha=0.8, label=arm)  # fmt: skip
        axes.plot([float(np.mean(values[arm]))] * 2, [y - 0.32, y + 0.32], color=COLOR[arm], linewidth=1.4)


def draw_ends(axes: Axes, run: Result) -> None:
    losses = {arm: [r["test_loss"] for r in run.arm(arm)] for arm in run.arms}
    axes.set_xscale("log")
    draw_column(axes, run, losses)
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    axes.minorticks_off()
    axes.annotate(
        "as in b:", (0, 9.95), xycoords=("axes fraction", "data"), xytext=(-3.5, 0), textcoords="offset points",
        ha="right", va="center", color=_style.GREY, fontsize=7,
    )  # fmt: skip
    _style.label_panel(axes, "e", "Final loss, 3 seeds")
    axes.set_xlabel("test loss (nats)")


def draw_wrong(axes: Axes, run: Result) -> None:
    """Beside it, how many steps each seed skipped."""
    by_arm = {arm: run.arm(arm) for arm in run.arms}
    axes.set_xscale("log")
    draw_column(axes, run, {arm: [100 * (1 - r["test_accuracy"]) for r in rows] for arm, rows in by_arm.items()})
    axes.tick_params(axis="y", labelleft=False)
    for arm, y in rows_of(axes, run).items():
        skips = [len(r["found_inf"]) for r in by_arm[arm]]
        if any(skips):
            _style.label_right(axes, y, y, " ".join(map(str, skips)), COLOR[arm])
    axes.annotate("skips", (1.02, 1.0), xycoords="axes fraction", color=_style.GREY, fontsize=7, va="bottom")
    axes.set_xticks([3, 10, 30, 100], ["3", "10", "30", "100"])
    axes.minorticks_off()
    _style.label_panel(axes, "f", "Errors")
    axes.set(xlabel="test images wrong (%)", xlim=(1.5, 110))
