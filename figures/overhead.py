"""Cost of loss scaling and clipping above the bare optimizer step: torch's scaler, and ampsim's with
one read of the gradients. Numbers on the bars are added milliseconds.
"""

import statistics
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.json_lines import Record
from figures import _style
from figures.results import Result

DATA = ("overhead",)
COLOR = {"bare": "#C9C9C9", "torch": _style.VERMILION, "ours": _style.BLUE}
BARS = {"torch clip": 0.0, "ours clip": 1.0, "torch": 2.6, "ours": 3.6}  # places
GROUPS = ((0.5, "unscale, clip, step, update"), (3.1, "step, update"))


def plot(run: Result) -> Figure:
    (record,) = run.records
    rows = record["rows"]
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.4)
    for letter, axes, row in zip(
        "abc", figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=False
    ):
        draw(axes, row)
        _style.label_panel(axes, letter, named(row["size"]))
    return figure


def draw(axes: Axes, row: Record) -> None:
    """Draw each bar: the bare step, and on it what is above it; median of the trials, lowest and highest as a line.

    A dotted line marks the lower bound: one read and the kernel's own division.
    """
    bare = milliseconds(row, "bare")
    base = statistics.median(bare)
    for arm, place in BARS.items():
        times = milliseconds(row, arm)
        middle = statistics.median(times)
        axes.bar(place, base, width=0.8, color=COLOR["bare"])
        axes.bar(place, middle - base, width=0.8, bottom=base, color=COLOR[arm.split()[0]])
        axes.vlines(place, min(times), max(times), color=_style.BLACK, linewidth=0.8)
        axes.text(
            place, max(times), f"+{middle - base:.2g}", ha="center", va="bottom", fontsize=6.5
        )
    if "floor" in row["microseconds"]:
        floor, place = statistics.median(milliseconds(row, "floor")), BARS["ours clip"]
        axes.hlines(
            floor, place - 0.4, place + 0.4, color=_style.BLACK, linestyles="dotted", linewidth=0.8
        )
    axes.text(BARS["torch clip"], base / 2, "bare\nstep", ha="center", va="center", fontsize=6.5)
    axes.set_xticks(list(BARS.values()), [ticks(row, arm) for arm in BARS], linespacing=1.3)
    for place, kind in GROUPS:
        axes.text(
            place,
            1.0,
            kind,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=7,
        )
    axes.tick_params(axis="x", length=0)
    axes.set(
        ylabel="time above the backward pass (ms)",
        ylim=(0, 1.25 * max(map(max, map(partial(milliseconds, row), BARS)))),
    )


def named(size: str) -> str:
    """Return a size in words: TENSORSxELEMENTS, or a model's name and its size."""
    tensors, _, elements = size.partition("x")
    return f"{tensors} tensors of {int(elements):,}" if tensors.isdigit() else size


def ticks(row: Record, arm: str) -> str:
    """Return the bar's name, and the factor between torch's added cost and this one."""
    name, _, clip = arm.partition(" ")
    if name == "torch":
        return name
    cost = row["ratios"][f"{name} {clip or 'plain'} cost"]
    factor = statistics.median(cost)
    return f"ampsim\n÷ {factor:.2f}" if factor >= 1 else f"ampsim\n{1 / factor:.2f} times"


def milliseconds(row: Record, arm: str) -> Sequence[float]:
    """Return one median per trial."""
    return [time / 1000 for time in row["microseconds"][arm]]
