"""How long the loss scale takes to come back after a spike of the gradient, and what T4 predicts."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style
from figures.results import ArmRecords, Result

DATA = ("spikes",)


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.ONE_COLUMN, 2.4)
    axes = figure.subplots()
    free = run.one(max_scale=None)
    (capped,) = (arm for arm in run.arms.values() if arm is not free)
    draw_arm(axes, capped, _style.BLUE, "o", -0.17)
    draw_arm(axes, free, _style.ORANGE, "D", 0.17)
    spikes = free.first["spikes"]
    predicted, places = [spike["recovery_t4"] for spike in spikes], np.arange(len(spikes))
    axes.hlines(predicted, places - 0.36, places + 0.36, color=_style.BLACK, linewidth=1.1, zorder=0, label="T4")
    axes.set_xticks(places, [f"{spike['height']} bits,\n{spike['lasts']} steps" for spike in spikes])
    axes.tick_params(axis="x", length=0)
    axes.text(2.42, predicted[2], "T4", va="center", fontsize=7)
    axes.text(-0.4, 112, "held below the ceiling", color=_style.BLUE, fontsize=7, va="center")
    axes.text(-0.4, 102, "at the ceiling", color=_style.ORANGE, fontsize=7, va="center")
    axes.set(xlabel="how far below the scale, for how long", ylabel="steps until it is back")
    axes.set(xlim=(-0.5, len(spikes) - 0.5), ylim=(0, 118))
    axes.set_title(f"Recovery from a spike, {_style.seeds(run)}")
    return figure


def draw_arm(axes: Axes, arm: ArmRecords, color: str, marker: str, shift: float) -> None:
    """Draw a mark per spike and seed."""
    for place, record in enumerate(arm):
        met = [np.nan if spike["recovery"] is None else spike["recovery"] for spike in record["spikes"]]
        x = np.arange(len(met)) + shift + 0.035 * (place - (len(arm) - 1) / 2)
        axes.plot(x, met, marker, color=color, markersize=2.8, markeredgewidth=0, label=arm.name)
