"""Each loss-scale policy in training: what it skips, what it leaves unused, what vanishes, and where the loss ends."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.records import Record
from figures import _policies, _style
from figures.results import Result

DATA = ("policies_closed",)
EVERY = 5  # steps between two scales in the data
TRACES = {  # policy -> colour in the first panel
    "backoff G=10": _style.SKY,
    "backoff G=2000": _style.BLUE,
    "headroom 3 bits": _style.GREEN,
    "headroom 1 bit": _style.ORANGE,
    "LogMax": _style.PURPLE,
    "LogMax as published": _style.VERMILION,
}
COLUMNS = {  # column of the data -> title, x label, factor
    "skip_rate": ("Skips", "% of steps", 100.0),
    "headroom": ("Unused", "bits", 1.0),
    "zero": ("Zeros", "% of the gradient", 100.0),
    "final_loss": ("Loss at the end", "nats", 1.0),
}
LIMITS = {"skip_rate": (0, 10), "headroom": (0, 24), "zero": (0, 60), "final_loss": (1.45, 2.35)}
SYMLOG: dict[str, list[float]] = {"skip_rate": [0, 0.5, 2, 8], "headroom": [0, 2, 5, 20]}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.9)
    grid = figure.add_gridspec(2, len(COLUMNS), height_ratios=(1, 1.35))
    draw_traces(figure.add_subplot(grid[0, :]), run)
    first = None
    for column, key in enumerate(COLUMNS):
        axes = figure.add_subplot(grid[1, column], sharey=first)
        draw_column(axes, run, key)
        axes.tick_params(axis="y", length=0, labelleft=first is None)
        title, unit, _ = COLUMNS[key]
        _style.label_panel(axes, "bcde"[column], title)
        axes.set_xlabel(unit)
        first = first or axes
    return figure


def draw_traces(axes: Axes, run: Result) -> None:
    """Draw the scale of a few policies, one seed."""
    ends = []
    for policy, line in TRACES.items():
        shown = run.one(policy=policy).first["shown"]
        axes.step(np.arange(len(shown)) * EVERY, shown, where="post", color=line, linewidth=0.9, label=policy)
        ends.append(shown[-1])
    for (policy, line), end, place in zip(TRACES.items(), ends, _style.spread(ends, 1.9), strict=True):
        _style.label_right(axes, end, place, policy, line)
    steps = EVERY * (len(shown) - 1)
    ticks = range(0, 21, 4)
    axes.set_yticks(ticks, [_style.power_of_two(k) for k in ticks])
    axes.set(xlabel="step", xlim=(0, steps), ylim=(-0.6, 23))
    _style.label_panel(axes, "a", "Loss scale, each policy in a run of its own")


def draw_column(axes: Axes, run: Result, key: str) -> None:
    """Draw a row per policy, a dot per seed, a bar at their mean."""
    for y, arm in enumerate(run.arms.values()):
        numbers = [number for record in arm if (number := value(record, key)) is not None]
        if not numbers:
            continue  # an empty line would still ask the layout for room
        color = _policies.color(arm.settings["policy"])
        axes.plot(numbers, [y] * len(numbers), "o", color=color, markersize=3.2, alpha=0.7, markeredgewidth=0,
                  clip_on=False, label=arm.name)  # fmt: skip
        axes.plot([float(np.mean(numbers))] * 2, [y - 0.36, y + 0.36], color=color, linewidth=1.2, clip_on=False)
    _policies.prepare_rows(axes, [arm.settings["policy"] for arm in run.arms.values()], SYMLOG.get(key))
    axes.set_xlim(*LIMITS[key])


def value(record: Record, key: str) -> float | None:
    """Return a unit's number as it is drawn; None where it has none."""
    number = record[key]
    if isinstance(number, list):
        number = number[0]
    if number is None or (key == "skip_rate" and record["settings"]["policy"] == "fp32"):
        return None
    return float(number) * COLUMNS[key][2]
