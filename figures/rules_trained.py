"""If the scale starts near the overflow threshold, no rule's final loss can be told from
float32's by these seeds.

a: the loss scale of some rules. b to e: skipped steps, bits of fp16's range that are left unused,
gradient elements that are zero, and the loss at the end. A dot is a seed, and a bar is the mean
with its confidence interval. Axes b and c are logarithmic beyond the first tick.
"""

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style
from figures import derived_numbers as q
from figures.results import ArmRecords, Array, Result

DATA = ("rules_trained",)
ALT = "Step curves of the loss scale of four rules, above four panels with a row of dots per rule"
NEEDS = {"rules_trained": ("fp32",)}  # the loss that others are compared with
TRACES = {  # rule -> colour in the first panel
    "G=2000": _style.BLUE,
    "LogMax as published": _style.PURPLE,
    "G=200 from 2^0": _style.VERMILION,
    "G=20 from 2^32": _style.BLACK,
}
COLUMNS = {  # panel -> title, x label
    "skip_rate": ("Skips", "% of steps"),
    "headroom": ("Unused", "bits, mean"),
    "zero": ("Zeros", "% of the gradient"),
    "final_loss": ("Loss minus float32's", "nats, same seed"),
}
COLOR = {  # by the start of a rule's name
    "fp32": _style.BLACK,
    "G=": _style.BLUE,
    "headroom": _style.GREEN,
    "LogMax": _style.PURPLE,
}
SYMLOG = {"skip_rate": (0, 0.5, 2, 8), "headroom": (0, 2, 5, 20)}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.35)
    grid = figure.add_gridspec(2, len(COLUMNS), height_ratios=(1, 1.35))
    draw_traces(figure.add_subplot(grid[0, :]), run)
    first: Axes | None = None
    for place, (key, (title, unit)) in enumerate(COLUMNS.items()):
        axes = figure.add_subplot(grid[1, place], sharey=first)
        first = first or axes
        axes.tick_params(labelleft=place == 0)
        _style.label_panel(axes, "bcde"[place], title)
        axes.set_xlabel(unit)
        for y, arm in enumerate(run.arms.values()):
            draw_row(axes, y, arm, values(run, arm, key))
        prepare_rows(axes, list(run.arms), SYMLOG.get(key))
        if key == "final_loss":
            axes.axvline(0, color=_style.GREY, linewidth=0.6, zorder=0)
    return figure


def draw_traces(axes: Axes, run: Result) -> None:
    """Draw the scale of the first seed under a few rules, each named where it ends."""
    rules = [rule for rule in TRACES if rule in run.arms]
    colors = [TRACES[rule] for rule in rules]
    shown = [np.log2(run.arm(rule).scales(run.steps)[0]) for rule in rules]
    for rule, color, log2 in zip(rules, colors, shown, strict=True):
        axes.step(
            range(run.steps), log2, where="post", color=color, linewidth=0.9, label=rule
        )
    ends = [log2[-1] for log2 in shown]
    _style.name_ends(axes, ends, 2.7, map(named, rules), colors)
    _style.power_ticks(axes.yaxis, range(0, 33, 4))
    axes.set(
        xlabel="step", ylabel="loss scale", xlim=(0, run.steps - 1), ylim=(-0.6, 33)
    )
    _style.label_panel(axes, "a", "Loss scale under some of the rules, first seed")


def named(rule: str) -> str:
    """Return a rule's name with powers of two as such."""
    return re.sub(r"2\^(\d+)", lambda power: _style.power_of_two(int(power[1])), rule)


def prepare_rows(
    axes: Axes, names: Sequence[str], ticks: Sequence[float] | None
) -> None:
    """Give each rule a row, the first on top; with `ticks`, on a logarithmic scale that shows zero."""
    if ticks:
        axes.set_xscale("symlog", linthresh=ticks[1])
        _style.number_ticks(axes.xaxis, ticks)
    axes.set_yticks(range(len(names)), list(map(named, names)))
    axes.set_ylim(len(names) - 0.5, -0.5)
    _style.draw_rows(axes)


def values(run: Result, arm: ArmRecords, key: str) -> Array | None:
    """Return a number per seed as it is drawn; None where the arm has none."""
    if (arm.name == "fp32" and key != "zero") or None in arm.column(key):
        return None
    if key == "final_loss":
        return q.more_loss(run, arm.name)
    return (
        100 * arm.numbers("skip_rate")
        if key == "skip_rate"
        else arm.numbers(key)[:, 0] * (1, 100)[key == "zero"]
    )


def draw_row(axes: Axes, y: int, arm: ArmRecords, numbers: Array | None) -> None:
    """Draw a dot per seed, a bar at their mean and the mean's 95 % interval by Student's t."""
    if numbers is None:
        return  # an empty line would still take space in the layout
    color = next(
        color for family, color in COLOR.items() if arm.name.startswith(family)
    )
    axes.plot(
        numbers,
        [y] * len(numbers),
        "o",
        color=color,
        markersize=2.6,
        alpha=0.55,
        markeredgewidth=0,
        clip_on=False,
        label=arm.name,
    )
    mean = float(numbers.mean())
    axes.plot(
        [mean, mean], [y - 0.36, y + 0.36], color=color, linewidth=1.2, clip_on=False
    )
    if len(numbers) not in q.STUDENT:
        return  # one seed has no interval
    half = q.half_width(numbers)
    axes.plot(
        [mean - half, mean + half],
        [y, y],
        color=color,
        linewidth=1.2,
        label=f"{arm.name} interval",
    )
