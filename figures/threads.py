"""With ampsim's scaler, no backward pass is unscaled with a wrong scale.

The optimizer runs on another thread, some steps behind (the depth). A wrong scale is another than
the loss was multiplied by. The share of passes with one falls with the growth interval, as the
scale changes less often.
"""

from collections.abc import Iterable
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.json_lines import Record
from figures import _style
from figures.results import Result

DATA = ("threads",)
ALT = "Two falling lines: the share of passes with a wrong scale against the growth interval"
COLORS = (
    _style.ORANGE,
    _style.VERMILION,
    _style.PURPLE,
    _style.GREEN,
)  # depths, low to high


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.ONE_COLUMN, 2.3)
    axes = figure.subplots()
    intervals = run.config["growth_intervals"]
    for depth, color in zip(run.config["depths"], cycle(COLORS), strict=False):
        draw_depth(axes, run, depth, color)
    ours = [row for row in run.records if row["arm"].startswith("ampsim")]
    wrong, checked = (sum(row[key] for row in ours) for key in ("wrong", "checked"))
    axes.text(
        0.03,
        0.05,
        f"ampsim, all settings:\n{wrong} of {checked:,} passes",
        transform=axes.transAxes,
        color=_style.BLUE,
    )
    axes.set(
        xscale="log",
        xlabel="growth interval G (steps)",
        ylabel="passes with a wrong scale (%)",
    )
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_ylim(-0.001, 300)
    axes.set_xticks(intervals, [str(interval) for interval in intervals])
    axes.set_xticks([], minor=True)
    _style.number_ticks(axes.yaxis, [0, 0.01, 0.1, 1, 10, 100])
    return figure


def share(units: Iterable[Record]) -> float:
    """Return the share of passes that were wrongly unscaled, of those that arrived finite, in all
    records.
    """
    wrong, checked = (sum(unit[key] for unit in units) for key in ("wrong", "checked"))
    return float(wrong / checked)


def draw_depth(axes: Axes, run: Result, depth: int, color: str) -> None:
    """Draw torch's scaler at one depth: all seeds as a line, each seed as a dot."""
    arms = run.where(scaler="torch", depth=depth)
    units = {arm.settings["growth_interval"]: arm for arm in arms}
    if not units:
        return
    line = [100 * share(list(arm)) for arm in units.values()]
    axes.plot([*units], line, "-", color=color)
    for interval, arm in units.items():
        for unit in arm:
            axes.plot(interval, 100 * share([unit]), "o", color=color, markersize=2.5)
    above = depth > 1
    named = [*zip(units, line, strict=True)][min(1, len(line) - 1)]
    axes.annotate(
        f"torch, depth {depth}",
        named,
        (6, 6) if above else (-2, -8),
        textcoords="offset points",
        ha="left" if above else "right",
        va="bottom" if above else "top",
        color=color,
    )
