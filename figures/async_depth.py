"""Final loss of training with an optimizer that runs k steps behind on its own thread. Late weights
raise the loss; a late loss scale alone hardly changes it.

With the longest delay, the optimizer's thread delays each step by k iterations; the losses are equal.
A dot is a seed, a bar their mean.
"""

from matplotlib.figure import Figure

from figures import _style
from figures.results import ArmRecords, Result

DATA = ("async_depth",)


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.ONE_COLUMN, 1.7)
    axes = figure.subplots()
    for y, arm in enumerate(run.arms.values()):
        losses, color = arm.numbers("test_loss"), color_of(arm)
        axes.plot(losses, [y] * len(losses), "o", color=color, markersize=3, label=arm.name)
        axes.plot([losses.mean()] * 2, [y - 0.32, y + 0.32], color=color, linewidth=1.4)
    axes.set_yticks(range(len(run.arms)), [name(arm) for arm in run.arms.values()])
    axes.set_ylim(len(run.arms) - 0.4, -0.6)
    axes.set_xlabel(f"test loss (nats per byte), {_style.seeds(run)}")
    _style.draw_rows(axes)
    return figure


def color_of(arm: ArmRecords) -> str:
    """Return one color for late weights, another where only the scale can be late."""
    return _style.VERMILION if arm.settings["weights"] else _style.BLUE


def name(arm: ArmRecords) -> str:
    """Return what is late, and by how many steps."""
    depth, weights = arm.settings["scale"], arm.settings["weights"]
    if weights != depth:
        return f"k = {depth}, scale alone"
    return f"k = {depth}{', longest delay' * arm.settings['latest']}"
