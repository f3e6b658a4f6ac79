"""Share of gradients that were unscaled by a wrong scale, against the depth of the queue between two threads."""

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.records import Record
from figures import _style
from figures.results import ArmRecords, Result

DATA = ("threads",)
COLOR = {"torch": _style.VERMILION, "ampsim": _style.BLUE}
NAME = {"torch": "torch.amp.GradScaler", "ampsim": "ours, with tickets"}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.ONE_COLUMN, 2.3)
    axes = figure.subplots()
    depths = run.config["depths"]
    for place, scaler in enumerate(COLOR):
        for position, depth in enumerate(depths):
            units = run.one(scaler=scaler, depth=depth)
            draw_bar(axes, position + 0.42 * (place - 0.5), scaler, units, NAME[scaler] if position == 0 else None)
    axes.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="depth of the queue", ylabel="wrongly unscaled, %", ylim=(0, 119), yticks=range(0, 101, 25))
    axes.legend(loc="upper left", ncols=2, handlelength=1.0, columnspacing=1.2, borderaxespad=0.0)
    return figure


def share(units: Iterable[Record]) -> float:
    """Return the share of gradient tensors that were wrongly unscaled, of those that arrived finite, in all records."""
    wrong, checked = (sum(unit[key] for unit in units) for key in ("wrong", "checked"))
    return float(wrong / checked)


def draw_bar(axes: Axes, x: float, scaler: str, units: ArmRecords, label: str | None) -> None:
    """Draw the share of all seeds as a bar with its counts, each seed's as a dot."""
    percent = 100 * share(units)
    axes.bar(x, percent, width=0.3, color=COLOR[scaler], label=label)
    dots = [100 * share([unit]) for unit in units]
    if percent > 0:
        axes.plot([x] * len(dots), dots, "o", color=_style.BLACK, markersize=2)
    wrong, checked = (sum(unit[key] for unit in units) for key in ("wrong", "checked"))
    text = f"{wrong // 1000} k\nof {checked // 1000} k" if wrong else f"0\nof {checked // 1000} k"
    axes.text(x, max([percent, *dots]) + 1.5, text, ha="center", va="bottom", fontsize=6, color=COLOR[scaler])
