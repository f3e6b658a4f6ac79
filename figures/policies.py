"""Loss-scale policies on one stream of gradients: a fall of the ceiling, and what each policy costs."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.records import Record
from figures import _policies, _style
from figures.results import ArmRecords, Result

DATA = ("policies",)
TRACES = {  # policy -> colour in the first panel
    "backoff G=2000": _style.SKY,
    "backoff G=50": _style.BLUE,
    "deduplicated G=50 k=2": _style.VERMILION,
    "headroom 1 bit": _style.GREEN,
    "LogMax": _style.PURPLE,
}
COLUMNS = {  # column of the data -> title, x label
    "skip_rate": ("Skips", "% of steps"),
    "headroom": ("Unused", "bits"),
    "burst": ("Burst", "skips in a row"),
    "recovery": ("Recovery", "steps; arrow: more"),
    "long_fall_skips": ("Fall for good", "more skips"),
}
TICKS: dict[str, list[float]] = {  # of the columns on a logarithmic scale
    "skip_rate": [0, 0.1, 1, 10],
    "headroom": [0, 2, 5, 20],
    "recovery": [0, 10, 100, 1000],
    "long_fall_skips": [0, 10, 100, 1000],
}


def plot(run: Result) -> Figure:
    units = run.arm("digits")
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.9)
    grid = figure.add_gridspec(2, len(COLUMNS), height_ratios=(1, 1.25))
    draw_traces(figure.add_subplot(grid[0, :]), run, units.first)
    first = None
    for column, key in enumerate(COLUMNS):
        axes = figure.add_subplot(grid[1, column], sharey=first)
        draw_column(axes, units, key)
        axes.tick_params(axis="y", length=0, labelleft=first is None)
        title, unit = COLUMNS[key]
        _style.label_panel(axes, "bcdef"[column], title)
        axes.set_xlabel(unit)
        first = first or axes
    return figure


def draw_traces(axes: Axes, run: Result, record: Record) -> None:
    """Draw the ceiling as dots, the scales as lines, around the short fall of one seed."""
    steps = np.arange(len(record["shown_ceilings"])) + record["shown_from"] - record["fell_at"]
    axes.plot(steps, record["shown_ceilings"], ".", color="#BBBBBB", markersize=2, zorder=0)
    ends = [record["policies"][name]["shown"][-1] for name in TRACES]
    places = _style.spread(ends, gap=1.7)
    low, high = 8.5, 25.5
    for (name, line), end, place in zip(TRACES.items(), ends, places, strict=True):
        axes.step(steps, record["policies"][name]["shown"], where="post", color=line, linewidth=0.9, label=name)
        _style.label_right(axes, end, place, name, line)
    fall = f"{run.config['fall']:g} bits lower for {run.config['fall_steps']} steps"
    axes.text(18, 24.2, f"dots: the ceiling, {fall}", fontsize=7, color=_style.GREY)
    ticks = range(10, 25, 4)
    axes.set_yticks(ticks, [_style.power_of_two(k) for k in ticks])
    _style.label_panel(axes, "a", "Loss scale")
    axes.set(xlabel="steps since the ceiling fell", ylim=(low, high), xlim=(steps[0], steps[-1]))


def draw_column(axes: Axes, units: ArmRecords, key: str) -> None:
    """Draw a row per policy, a dot per seed; an arrow where the stream ended before the scale was back."""
    names = list(units.first["policies"])
    values = {name: [value(record["policies"][name], key) for record in units] for name in names}
    known = [x for row in values.values() for x in row if x is not None]
    limit = 1.6 * max(known) if key in TICKS else 1.12 * max(known)
    for y, name in enumerate(names):
        for x in values[name]:
            marker = ">" if x is None else "o"
            axes.plot(
                limit if x is None else x,
                y,
                marker,
                color=_policies.color(name),
                markersize=3.2,
                alpha=0.75,
                clip_on=False,
                label=name,
            )
    _policies.prepare_rows(axes, names, TICKS.get(key))
    axes.set_xlim(0, limit)


def value(policy: Record, key: str) -> float | None:
    """Return a policy's number as it is drawn."""
    if key == "headroom":
        return float(policy[key][0])
    number = policy[key]
    if number is None or math.isnan(number):
        return None
    return 100.0 * number if key == "skip_rate" else float(number)
