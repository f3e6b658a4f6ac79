"""A residual network in fp16: a mean loss needs no loss scale, a fixed scale that is too high raises
the loss, and a share of a large batch needs a loss scale.
"""

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style, _training
from figures.results import ArmRecords, Array, Result

DATA = ("resnet_fp16",)
MEAN = ("fixed", "fp32", "unscaled", "dynamic")
SHARE = ("fp32", "unscaled", "dynamic")


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.6)
    halves = figure.add_gridspec(2, 1, height_ratios=(1, 1.2))
    top, bottom = (
        halves[0].subgridspec(1, 3),
        halves[1].subgridspec(1, 3, width_ratios=(1.5, 1.2, 1)),
    )
    a, b, c = (figure.add_subplot(top[column]) for column in range(3))
    d, e = (figure.add_subplot(bottom[column]) for column in range(2))
    f = figure.add_subplot(bottom[2], sharey=e)
    for axes, letter, roles, loss, title in (
        (a, "a", MEAN, "mean", "Loss: mean over a batch"),
        (b, "b", SHARE, "share", "Loss: share of a global batch"),
    ):
        arms = _training.by_role(run, loss)
        _training.draw_losses(axes, [arms[role] for role in roles], alpha=0.6)
        axes.set(ylabel="training loss (nats)", ylim=(0, 2.6))
        _style.label_panel(axes, letter, title)
    _training.draw_zeros(c, arms)
    _style.label_panel(c, "c", "Zero elements in b")
    _training.draw_scales(d, run)
    draw_ends(e, run)
    draw_wrong(f, run)
    return figure


def rows_of(axes: Axes, run: Result) -> dict[str, float]:
    """Return each arm's height, the first on top; the arms of the global batch stand apart."""
    places = {
        name: n + 0.9 * (arm.settings["loss"] == "share")
        for n, (name, arm) in enumerate(run.arms.items())
    }
    axes.set_yticks(list(places.values()), [_training.long_name(arm) for arm in run.arms.values()])
    axes.set_ylim(max(places.values()) + 0.6, -0.6)
    _style.draw_rows(axes)
    return places


def draw_column(axes: Axes, run: Result, values: Callable[[ArmRecords], Array]) -> None:
    """Draw a row per arm: a dot per seed, a bar at the mean."""
    axes.set_xscale("log")
    for name, y in rows_of(axes, run).items():
        x, color = values(run.arm(name)), _training.color(run.arm(name))
        axes.plot(
            x,
            [y] * len(x),
            "o",
            color=color,
            markersize=3,
            markeredgewidth=0,
            alpha=0.8,
            label=name,
        )
        axes.plot([x.mean()] * 2, [y - 0.32, y + 0.32], color=color, linewidth=1.4)


def draw_ends(axes: Axes, run: Result) -> None:
    """Draw where each arm's loss ends."""
    draw_column(axes, run, lambda arm: arm.numbers("test_loss"))
    _style.number_ticks(axes.xaxis, [0.1, 0.2, 0.5, 1, 2])
    axes.annotate(
        "as in b:", (0, 7.95), xycoords=("axes fraction", "data"), xytext=(-3.5, 0), textcoords="offset points",
        ha="right", va="center", color=_style.GREY, fontsize=7,
    )  # fmt: skip
    _style.label_panel(axes, "e", f"Final loss, {_style.seeds(run)}")
    axes.set_xlabel("test loss (nats)")


def draw_wrong(axes: Axes, run: Result) -> None:
    """Draw the share of misclassified test images, and beside it the skipped steps of each seed."""
    draw_column(axes, run, lambda arm: 100 * (1 - arm.numbers("test_accuracy")))
    axes.tick_params(axis="y", labelleft=False)
    for name, y in rows_of(axes, run).items():
        skips = run.arm(name).skips()
        if any(skips):
            _style.label_right(
                axes, y, y, " ".join(map(str, skips)), _training.color(run.arm(name))
            )
    axes.annotate(
        "skips", (1.02, 1.0), xycoords="axes fraction", color=_style.GREY, fontsize=7, va="bottom"
    )
    _style.number_ticks(axes.xaxis, [3, 10, 30, 100])
    _style.label_panel(axes, "f", "Errors")
    axes.set(xlabel="test error (%)", xlim=(1.5, 110))
