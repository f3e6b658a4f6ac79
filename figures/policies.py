"""Loss-scale policies on one stream of gradients: response to a drop of the overflow threshold, and
cost of each policy. Arrows: the run ended before the scale recovered.
"""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.json_lines import Record
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
    "recovery": ("Recovery", "steps"),
    "long_fall_skips": ("Permanent drop", "extra skips"),
}
TICKS = {  # of the columns on a logarithmic scale
    "skip_rate": (0, 0.1, 1, 10),
    "headroom": (0, 2, 5, 20),
    "recovery": (0, 10, 100, 1000),
    "long_fall_skips": (0, 10, 100, 1000),
}


def plot(run: Result) -> Figure:
    figure, traces, below = _policies.new_figure(COLUMNS, 1.25)
    draw_fall(traces, run)
    for key, axes in below.items():
        draw_column(axes, run.arm("digits"), key)
    return figure


def draw_fall(axes: Axes, run: Result) -> None:
    """Draw the threshold as dots, the scales as lines, around the short fall of one seed."""
    record = run.arm("digits").first
    steps = range(
        record["shown_from"] - record["fell_at"],
        len(record["shown_ceilings"]) + record["shown_from"] - record["fell_at"],
    )
    axes.plot(steps, record["shown_ceilings"], ".", color="#BBBBBB", markersize=2, zorder=0)
    shown = {name: policy["shown"] for name, policy in record["policies"].items()}
    _policies.draw_traces(axes, steps, shown, TRACES, 1.7)
    fall = f"lower by {run.config['fall']:g} bits for {run.config['fall_steps']} steps"
    axes.text(18, 24.2, f"dots: overflow threshold, {fall}", fontsize=7, color=_style.GREY)
    _style.power_ticks(axes.yaxis, range(10, 25, 4))
    _style.label_panel(axes, "a", "Loss scale")
    axes.set(xlabel="steps since the threshold dropped", ylim=(8.5, 25.5))


def draw_column(axes: Axes, units: ArmRecords, key: str) -> None:
    """Draw a row per policy, a dot per seed; an arrow if the stream ended before the scale recovered."""
    names = list(units.first["policies"])
    values = [
        (y, name, value(record["policies"][name], key))
        for y, name in enumerate(names)
        for record in units
    ]
    limit = (1.6 if key in TICKS else 1.12) * max(x for _, _, x in values if x is not None)
    for y, name, x in values:
        place, marker = (limit, ">") if x is None else (x, "o")
        axes.plot(
            place,
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
