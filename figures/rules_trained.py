"""Loss-scale rules in training: skipped steps, unused bits, zero gradients, and final loss of each."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _policies, _style
from figures import derived_numbers as q
from figures.results import ArmRecords, Array, Result

DATA = ("rules_trained",)
TRACES = {  # rule -> colour in the first panel
    "G=5": _style.SKY,
    "G=2000": _style.BLUE,
    "headroom 3 bits": _style.GREEN,
    "LogMax as published": _style.PURPLE,
    "G=20 from 2^0": _style.ORANGE,
    "G=200 from 2^0": _style.VERMILION,
    "G=20 from 2^32": _style.BLACK,
}
COLUMNS = {  # panel -> title, x label
    "skip_rate": ("Skips", "% of steps"),
    "headroom": ("Unused", "bits, mean"),
    "zero": ("Zeros", "% of the gradient"),
    "final_loss": ("Loss minus float32's", "nats, same seed"),
}
SYMLOG = {"skip_rate": (0, 0.5, 2, 8), "headroom": (0, 2, 5, 20)}


def plot(run: Result) -> Figure:
    figure, traces, below = _policies.new_figure(COLUMNS, 1.35)
    shown = {rule: np.log2(run.arm(rule).scales(run.steps)[0]) for rule in TRACES}
    _policies.draw_traces(traces, range(run.steps), shown, TRACES, 2.7)
    _style.power_ticks(traces.yaxis, range(0, 33, 4))
    traces.set(xlabel="step", ylabel="loss scale", ylim=(-0.6, 33))
    _style.label_panel(traces, "a", "Loss scale under some of the rules, first seed")
    for key, axes in below.items():
        for y, arm in enumerate(run.arms.values()):
            draw_row(axes, y, arm, values(run, arm, key))
        _policies.prepare_rows(axes, list(run.arms), SYMLOG.get(key))
    below["final_loss"].axvline(0, color=_style.GREY, linewidth=0.6, zorder=0)
    return figure


def values(run: Result, arm: ArmRecords, key: str) -> Array | None:
    """Return a number per seed as it is drawn; None where the arm has none."""
    if arm.name == "fp32" and key != "zero":
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
    color = _policies.color(arm.name)
    axes.plot(numbers, [y] * len(numbers), "o", color=color, markersize=2.6, alpha=0.55, markeredgewidth=0,
              clip_on=False, label=arm.name)  # fmt: skip
    mean = float(numbers.mean())
    axes.plot([mean, mean], [y - 0.36, y + 0.36], color=color, linewidth=1.2, clip_on=False)
    half = q.half_width(numbers)
    axes.plot(
        [mean - half, mean + half], [y, y], color=color, linewidth=1.2, label=f"{arm.name} interval"
    )
