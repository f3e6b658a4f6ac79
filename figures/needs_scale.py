"""A fixed loss scale works within a range: below it gradients become zero, above it steps are
skipped.

a, b: the loss of networks that trained with one fixed scale each. c, d: the test loss minus that of
float32 with the same seed, by loss scale. Sum: the loss is summed over the batch. Share: the loss
is divided by a large global batch; only then does unscaled training of these two networks fail.
"""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from figures import _style
from figures.results import ArmRecords, Array, Result

DATA = ("static_sweep", "sigmoid_underflow", "resnet_fp16", "gpt_fp16")
ALT = "Curves of the loss, flat at middle loss scales and high at both ends, above rows of dots"
NEEDS = dict.fromkeys(DATA, ("fp32",))  # the loss that others are compared with
COLOR = {
    "fp32": _style.BLACK,
    "bf16": _style.GREY,
    "unscaled": _style.VERMILION,
    "fixed": _style.GREEN,
    "dynamic": _style.BLUE,
}
PRECISION = {"float32": "fp32", "bfloat16": "bf16"}
LOSSES = {"mean": "", "sum": ", sum", "share": ", share"}
NEAR = 0.05  # nats above float32 that still count as the plateau
LINEAR = 0.1  # nats; the axis is logarithmic beyond


def plot(residual: Result, sigmoid: Result, resnet: Result, gpt: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.6)
    halves = figure.add_gridspec(2, 1, height_ratios=(1, 1.3))
    above = halves[0].subgridspec(1, 2)
    below = halves[1].subgridspec(1, 2)
    a = figure.add_subplot(above[0])
    b = figure.add_subplot(above[1])
    c = figure.add_subplot(below[0])
    d = figure.add_subplot(below[1])
    draw_sweep(a, residual, "test_loss")
    _style.label_panel(a, "a", f"Residual net, {_style.seeds(residual)}")
    draw_sweep(b, sigmoid, "train_loss")
    _style.label_panel(b, "b", f"Deep sigmoid net, {_style.seeds(sigmoid)}")
    draw_differences(c, resnet)
    c.set_xlabel("test loss minus fp32's (nats)")
    _style.label_panel(c, "c", f"ResNet, {_style.seeds(resnet)}")
    draw_differences(d, gpt)
    d.set_xlabel("test loss minus fp32's (nats per byte)")
    _style.label_panel(d, "d", f"Transformer, {_style.seeds(gpt)}")
    return figure


def role(arm: ArmRecords) -> str:
    """Return what an arm is for: fp32, bf16, unscaled, fixed, or dynamic."""
    settings = arm.settings
    if settings["dtype"] in PRECISION:
        return PRECISION[settings["dtype"]]
    if settings["growth_interval"] is not None:
        return "dynamic"
    return "unscaled" if settings["init_scale"] == 1 else "fixed"


def name(arm: ArmRecords) -> str:
    """Return an arm's name as it is drawn."""
    first = _style.power_of_two(math.log2(arm.settings["init_scale"]))
    names = {"fixed": f"fixed {first}", "dynamic": f"dynamic {first}"}
    return names.get(role(arm), role(arm)) + LOSSES[arm.settings["loss"]]


def by_scale(run: Result) -> dict[float, ArmRecords]:
    """Return the arms with a fixed loss scale by its log2, low to high."""
    fixed = run.where(dtype="float16", growth_interval=None)
    return {
        math.log2(arm.settings["init_scale"]): arm
        for arm in sorted(fixed, key=lambda arm: arm.settings["init_scale"])
    }


def draw_sweep(axes: Axes, run: Result, column: str) -> None:
    """Draw the final loss by fixed scale: seeds as dots, their mean as a line."""
    arms = by_scale(run)
    ends = [arm.numbers(column) for arm in arms.values()]
    color = COLOR["fixed"]
    for exponent, losses in zip(arms, ends, strict=True):
        axes.plot(
            [exponent] * len(losses),
            losses,
            "o",
            color=color,
            markersize=2.2,
            alpha=0.6,
        )
    means = np.array([losses.mean() for losses in ends])
    axes.plot([*arms], means, color=color, linewidth=1.6, label="mean")
    reference = run.one(dtype="float32").mean(column)
    dynamic = [arm.mean(column) for arm in run.arms.values() if role(arm) == "dynamic"]
    untrained = float(np.mean([record["loss"][0] for record in run.records]))
    levels = {"fp32": reference}
    if dynamic:
        levels["dynamic"] = dynamic[0]
    levels["untrained"] = untrained
    colors = [COLOR.get(level, _style.GREY) for level in levels]
    for level, shade in zip(levels.values(), colors, strict=True):
        axes.axhline(
            level, color=shade, linewidth=0.8, linestyle=(0, (2.5, 1.5)), zorder=0
        )
    _style.name_ends(axes, [*levels.values()], 0.3, levels, colors)
    draw_plateau(
        axes,
        [k for k, mean in zip(arms, means, strict=True) if mean < reference + NEAR],
    )
    axes.xaxis.set_major_locator(MultipleLocator(8))
    axes.xaxis.set_major_formatter(lambda exponent, _: _style.power_of_two(exponent))
    axes.set(xlabel="fixed loss scale", ylim=(-0.6, 1.1 * untrained))
    axes.set_yticks(np.arange(0, untrained, 0.5))
    axes.set_ylabel(f"{column.replace('train', 'training').replace('_', ' ')} (nats)")


def draw_plateau(axes: Axes, good: list[float]) -> None:
    """Draw below the curve how many bits there are to choose from."""
    if len(good) > 1:
        color = COLOR["fixed"]
        axes.plot(
            [good[0], good[-1]], [-0.15, -0.15], "|-", color=color, label="plateau"
        )
        text = f"{good[-1] - good[0]:g} bits"
        axes.text(
            (good[0] + good[-1]) / 2, -0.22, text, color=color, ha="center", va="top"
        )


def references(run: Result, arm: ArmRecords) -> tuple[ArmRecords, ...]:
    """Return the float32 arm with the same loss, if there is one."""
    loss = arm.settings["loss"]
    return run.where(dtype="float32", loss="mean" if loss == "sum" else loss)


def differences(run: Result, arm: ArmRecords) -> Array:
    """Return the test loss minus that of float32 with the same seed and loss, (seeds,)."""
    (reference,) = references(run, arm)
    return np.asarray(arm.numbers("test_loss") - reference.numbers("test_loss"))


def draw_differences(axes: Axes, run: Result) -> None:
    """Draw a row per arm: a dot per seed, a bar at the mean."""
    arms = [
        arm for arm in run.arms.values() if role(arm) != "fp32" and references(run, arm)
    ]
    for y, arm in enumerate(arms):
        values = differences(run, arm)
        color = COLOR[role(arm)]
        axes.plot(
            values, [y] * len(values), "o", color=color, markersize=3, label=arm.name
        )
        axes.plot([values.mean()] * 2, [y - 0.32, y + 0.32], color=color, linewidth=1.4)
    axes.axvline(0, color=COLOR["fp32"], linewidth=0.6, zorder=0)
    axes.set_xscale("symlog", linthresh=LINEAR)
    _style.number_ticks(axes.xaxis, [-0.1, 0, 0.1, 0.3, 1])
    axes.margins(x=0.08)
    axes.set_yticks(range(len(arms)), [name(arm) for arm in arms])
    axes.set_ylim(len(arms) - 0.4, -0.6)
    _style.draw_rows(axes)
