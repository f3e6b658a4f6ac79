"""What the figures of whole training runs share: the colour and name of an arm, by its settings, and three panels."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from ampsim.core.machine import Rule
from figures import _style
from figures.results import ArmRecords, Result

BLOCK = 10  # steps in one point of a loss curve
PRECISION = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
COLOR = {
    "fp32": _style.BLACK,
    "bf16": _style.GREY,
    "unscaled": _style.VERMILION,
    "sum": _style.PURPLE,
}
# The fixed scales, by log2, are one family: greens, darker as the scale grows. The last is past the cliff.
FIXED = {4: "#BFE3D6", 8: "#7CC7AE", 12: _style.GREEN, 16: "#00704F", 20: _style.PURPLE}
DYNAMIC = {50: _style.BLUE, 200: "#2E93C9", 2000: _style.SKY}  # by growth interval
STARTS = {8: _style.GREEN, 32: _style.ORANGE}  # by log2 of a first scale that is not the usual one


def role(arm: ArmRecords) -> str:
    """Return what an arm is for: fp32, bf16, unscaled, fixed, dynamic, or sum."""
    settings = arm.settings
    if settings["loss"] == "sum":
        return "sum"
    if settings["dtype"] != "float16":
        return PRECISION[settings["dtype"]]
    if settings["growth_interval"] is None:
        return "unscaled" if settings["init_scale"] == 1 else "fixed"
    return "dynamic"


def by_role(run: Result, loss: str = "mean") -> dict[str, ArmRecords]:
    """Return the first arm of each role with this loss."""
    arms: dict[str, ArmRecords] = {}
    for arm in run.where(loss=loss):
        arms.setdefault(role(arm), arm)
    return arms


def init_log2(arm: ArmRecords) -> int:
    """Return log2 of the first scale."""
    return round(math.log2(arm.settings["init_scale"]))


def color(arm: ArmRecords) -> str:
    """Return the colour that the arm has in every figure."""
    if role(arm) == "fixed":
        return FIXED[init_log2(arm)]
    if role(arm) == "dynamic":
        return STARTS.get(init_log2(arm)) or DYNAMIC[arm.settings["growth_interval"]]
    return COLOR[role(arm)]


def name(arm: ArmRecords) -> str:
    """Return the arm's name beside a curve, where there is one dynamic arm."""
    return f"fixed {_style.power_of_two(init_log2(arm))}" if role(arm) == "fixed" else role(arm)


def long_name(arm: ArmRecords, equals: str = "=") -> str:
    """Return the arm's name where there are several dynamic ones."""
    if role(arm) != "dynamic":
        return name(arm)
    if arm.settings["init_scale"] != Rule().init_scale:
        return f"from {_style.power_of_two(init_log2(arm))}"
    return f"G{equals}{arm.settings['growth_interval']}"


def draw_losses(axes: Axes, arms: Sequence[ArmRecords], alpha: float) -> None:
    """Draw each seed as a thin line and their mean as a thick one."""
    ends = []
    for arm in arms:
        loss = arm.loss_blocks(BLOCK)
        steps = (np.arange(loss.shape[1]) + 0.5) * BLOCK
        axes.plot(steps, loss.T, color=color(arm), linewidth=0.4, alpha=alpha)
        axes.plot(steps, loss.mean(axis=0), color=color(arm), label=arm.name)
        ends.append(float(loss[:, -1].mean()))
    _style.name_ends(axes, ends, 0.24, map(name, arms), map(color, arms))
    axes.set(xlabel="step", xlim=(0, len(arms[0].first["loss"])))


def draw_zeros(axes: Axes, shared: dict[str, ArmRecords]) -> None:
    """Draw the share of the gradient's elements that are zero in fp16, of all parameters, seeds averaged."""
    texts = {"unscaled": "unscaled", "fp32": "fp32,\nrounded", "dynamic": "dynamic"}
    arms, ends = [shared[role] for role in texts], []
    for arm in arms:
        zero = 100 * arm.numbers("zero").mean(axis=0)
        axes.plot(arm.first["counted_steps"], zero, color=color(arm), label=arm.name)
        ends.append(float(zero[-1]))
    _style.name_ends(axes, ends, 14, texts.values(), map(color, arms))
    axes.set(
        xlabel="step", ylabel="elements (%)", ylim=(-2, 104), xlim=(0, len(arms[0].first["loss"]))
    )
    axes.set_yticks(range(0, 101, 25))


def draw_scales(axes: Axes, run: Result) -> None:
    """Draw the dynamic scales, each seed as a thin line, the first of them thick."""
    dynamic = [arm for arm in run.where(loss="mean") if role(arm) == "dynamic"]
    arms = [*sorted(dynamic, key=init_log2, reverse=True), *run.where(loss="sum")]
    ends = []
    for arm in arms:
        first, *others = np.log2(arm.scales())
        steps = np.arange(len(first))
        for line in others[::-1]:
            axes.step(steps, line, where="post", color=color(arm), linewidth=0.4, alpha=0.45)
        axes.step(
            steps, first, where="post", color=color(arm), linewidth=1.2, alpha=1.0, label=arm.name
        )
        ends.append(float(first[-1]))
    _style.name_ends(axes, ends, 2.1, (long_name(arm, " = ") for arm in arms), map(color, arms))
    _style.power_ticks(axes.yaxis, range(8, 33, 4))
    _style.label_panel(axes, "d", "Dynamic loss scale")
    axes.set(xlabel="step", ylim=(6, 33), xlim=(0, run.steps))
