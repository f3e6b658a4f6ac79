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
COLUMNS = {  # column of the data -> title, x label
    "skip_rate": ("Skips", "% of steps"),
    "headroom": ("Unused", "bits"),
    "zero": ("Zeros", "% of the gradient"),
    "final_loss": ("Loss at the end", "nats"),
}
LIMITS = {"skip_rate": (0, 10), "headroom": (0, 24), "zero": (0, 60), "final_loss": (1.45, 2.35)}
SYMLOG = {"skip_rate": (0, 0.5, 2, 8), "headroom": (0, 2, 5, 20)}


def plot(run: Result) -> Figure:
    figure, traces, below = _policies.new_figure(COLUMNS, 1.35)
    shown = {policy: run.one(policy=policy).first["shown"] for policy in TRACES}
    steps = [EVERY * place for place in range(len(shown["LogMax"]))]
    _policies.draw_traces(traces, steps, shown, TRACES, 1.9)
    _style.power_ticks(traces.yaxis, range(0, 21, 4))
    traces.set(xlabel="step", ylim=(-0.6, 23))
    _style.label_panel(traces, "a", "Loss scale, each policy in a run of its own")
    for key, axes in below.items():
        draw_column(axes, run, key)
    return figure


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
    number = record[key][0] if isinstance(record[key], list) else record[key]
    if number is None or (key == "skip_rate" and record["settings"]["policy"] == "fp32"):
        return None
    return float(number) * (100.0 if COLUMNS[key][1].startswith("%") else 1.0)
