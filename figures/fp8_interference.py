"""A loss scale above flax's fp8 layer: what becomes of the scale, of the layer's output, and of a doubling input.

a: an overflow under three ways to treat the layer's state; b: the output over the true one below flax's scaler, which
divides that state by the loss scale, and below ours; c: the largest input that each step's scale holds, and the input.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style
from figures.results import Result

DATA = ("fp8_interference",)
LOOPS = {
    "kept": ("a skip keeps fp8 state", _style.BLUE),
    "overwritten": ("a skip writes fp8 state", _style.VERMILION),
    "unseen": ("inf sought in parameters only", _style.ORANGE),
}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.2)
    a, b, c = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    draw_scales(a, run)
    _style.label_panel(a, "a", f"Loss scale, H = {max(run.config['windows'])}")
    draw_division(b, run)
    _style.label_panel(b, "b", "Output over the true one")
    draw_lag(c, run)
    _style.label_panel(c, "c", "Doubling input")
    return figure


def draw_scales(axes: Axes, run: Result) -> None:
    """Draw the loss scale of each loop with the largest window."""
    for loop, (label, color) in LOOPS.items():
        row = run.one(asks=loop, growth_interval=run.config["intervals"][0], window=max(run.config["windows"])).first
        every = max(1, run.steps // 200)
        steps = [every * n for n in range(len(row["log2_scale"]))]
        axes.plot(steps, row["log2_scale"], color=color, drawstyle="steps-post", label=label)
    _style.power_ticks(axes.yaxis, range(-120, 41, 40))
    axes.set(xlabel="step", ylabel="loss scale")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.12))


def draw_division(axes: Axes, run: Result) -> None:
    """Draw the ratio of outputs by log2 of the loss scale."""
    ratios = run.arm("division").first["ratios"]
    for name, label, color in (("flax", "flax's DynamicScale", _style.VERMILION), ("ours", "ours", _style.BLUE)):
        axes.plot(*zip(*ratios[name], strict=True), "o-", color=color, markersize=3, label=label)
    axes.set(yscale="log", ylim=(1e-14, 30))
    _style.power_ticks(axes.xaxis, range(0, 17, 4))
    axes.set(xlabel="loss scale")
    axes.legend(loc="lower left")


def draw_lag(axes: Axes, run: Result) -> None:
    """Draw the inputs, and what each step's scale holds."""
    for arm, label, color in (("lag", "flax", _style.BLUE), ("keras", "Keras", _style.PURPLE)):
        holds = run.arm(arm).first["holds"]
        axes.plot(range(len(holds)), holds, "o-", color=color, markersize=3, label=label)
    inputs = run.arm("lag").first["inputs"]
    axes.plot(range(len(inputs)), inputs, "k--", linewidth=0.8, label="input")
    axes.set_yscale("log", base=2)
    axes.set(xlabel="step", ylabel="largest that is held", ylim=(0.5, 2.0**14))
    axes.legend(loc="upper right")
