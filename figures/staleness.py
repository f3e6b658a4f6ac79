"""Cost of a loss scale that is k steps late: skipped steps, unused bits, and consecutive skips."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.json_lines import Record
from ampsim.core.theory import stale
from figures import _style
from figures.results import Result

DATA = ("staleness",)
COLOR = {"cumulative": _style.BLUE, "deduplicated": _style.VERMILION, "probe": _style.GREEN}
PANELS = {
    "skip_rate": ("Skips", "skipped steps (%)", 100.0),
    "headroom": ("Unused", "unused range (bits)", 1.0),
    "burst": ("Burst", "consecutive skips", 1.0),
}


def plot(run: Result) -> Figure:
    depths = run.config["depths"]
    figure = _style.new_figure(_style.TWO_COLUMNS, 1.9)
    panels = figure.subplots(1, 3)
    for place, (axes, (key, (title, unit, factor))) in enumerate(
        zip(panels, PANELS.items(), strict=True)
    ):
        draw_closed_form(axes, run, key, factor)
        draw_trained(axes, run, key, factor)
        _style.label_panel(axes, "abc"[place], title)
        axes.set(xlim=(-0.3, max(depths) + 0.3), xticks=depths, ylim=(0, None))
        axes.set(xlabel="k (steps that the scale is late)", ylabel=unit)
    for place, (policy, color) in enumerate(COLOR.items()):
        panels[1].text(0.04, 0.94 - 0.1 * place, policy, transform=panels[1].transAxes, va="top",
                       fontsize=7, color=color)  # fmt: skip
    return figure


def draw_closed_form(axes: Axes, run: Result, key: str, factor: float) -> None:
    """Draw T5, the cost under a constant threshold, as dashed lines."""
    depths = np.arange(max(run.config["depths"]) + 1)
    for policy, color in COLOR.items():
        costs = [stale(policy, run.config["interval"], int(k)) for k in depths]
        values = [factor * getattr(cost, key) for cost in costs]
        axes.plot(depths, values, "--", color=color, linewidth=0.7, label=f"{policy} T5")


def draw_trained(axes: Axes, run: Result, key: str, factor: float) -> None:
    """Draw a dot per seed, and a line through the means."""
    for place, (policy, color) in enumerate(COLOR.items()):
        arms = sorted(run.where(policy=policy), key=lambda arm: arm.settings["k"])
        x = [arm.settings["k"] + 0.09 * (place - 1) for arm in arms]
        means = []
        for arm, across in zip(arms, x, strict=True):
            values = [factor * value(record, key) for record in arm]
            means.append(float(np.mean(values)))
            axes.plot([across] * len(values), values, "o", color=color, markersize=2.5,
                      markeredgewidth=0, clip_on=False)  # fmt: skip
        axes.plot(x, means, color=color, linewidth=0.9, label=f"{policy} mean")


def value(record: Record, key: str) -> float:
    """Return the worst burst, or a rate."""
    return float(max(record["bursts"], default=0) if key == "burst" else record[key])
