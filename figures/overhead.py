"""What loss scaling and clipping cost above the bare optimizer step, torch's way and in one read."""

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.records import Record
from figures import _style

DATA = ("overhead",)
COLOR = {"bare": "#C9C9C9", "torch": _style.VERMILION, "ours": _style.BLUE}
BARS = (("torch clip", "torch"), ("ours clip", "ours"), ("torch", "torch"), ("ours", "ours"))
PLACES = (0.0, 1.0, 2.6, 3.6)  # of the bars; pairs stand together


def plot(data: _style.Data) -> Figure:
    _, (record,) = data[DATA[0]]
    rows = record["rows"]
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.4)
    for letter, axes, row in zip("abc", figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=False):
        draw(axes, row)
        tensors, elements = row["size"].split("x")
        _style.label_panel(axes, letter, f"{tensors} tensors of {int(elements):,}")
    return figure


def draw(axes: Axes, row: Record) -> None:
    """Each bar: the bare step, and on it what is above it; median of the trials, lowest and highest as a line."""
    bare = milliseconds(row, "bare")
    base = statistics.median(bare)
    for place, (arm, scaler) in zip(PLACES, BARS, strict=True):
        times = milliseconds(row, arm)
        middle = statistics.median(times)
        axes.bar(place, base, width=0.8, color=COLOR["bare"])
        axes.bar(place, middle - base, width=0.8, bottom=base, color=COLOR[scaler])
        axes.vlines(place, min(times), max(times), color=_style.BLACK, linewidth=0.8)
        axes.text(place, max(times), f"+{middle - base:.2g} ms", ha="center", va="bottom", fontsize=6.5)
    top = 1.32 * max(statistics.median(milliseconds(row, arm)) for arm, _ in BARS)
    for left, kind in ((0, "clip"), (2, "plain")):
        cost, whole = (statistics.median(row["ratios"][f"{kind} {what}"]) for what in ("cost", "whole"))
        text = f"cost ÷ {cost:.2f}\nwhole ÷ {whole:.2f}"
        axes.text((PLACES[left] + PLACES[left + 1]) / 2, top, text, ha="center", va="top", fontsize=7)
    axes.text(PLACES[0], base / 2, "bare\nstep", ha="center", va="center", fontsize=6.5)
    axes.set_xticks(PLACES, [scaler for _, scaler in BARS])
    for place, kind in ((0.5, "unscale, clip, step, update"), (3.1, "step, update")):
        axes.text(place, -0.15, kind, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=7)
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="one step, ms", ylim=(0, top))


def milliseconds(row: Record, arm: str) -> Sequence[float]:
    """One median a trial."""
    return [time / 1000 for time in row["microseconds"][arm]]
