"""What warns of a crash of the loss scale, how long before, and how often where none comes."""

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.records import Record
from figures import _style
from figures.results import Result

DATA = ("crash_signals",)
WATCHED = {"alarms": _style.BLACK, "alarms_from_10": _style.VERMILION}  # from the first step on, and from later on
NONE = -0.55  # where a crash without a warning is drawn


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.2)
    axes = figure.subplots()
    crashed = [record for record in run.records if record["crash_step"] is not None]
    calm = [record for record in run.records if record["crash_step"] is None]
    signals = sorted(crashed[0]["alarms"], key=lambda signal: false_alarms(calm, signal))
    for row, signal in enumerate(signals):
        for (watched, color), shift in zip(WATCHED.items(), (-0.17, 0.17), strict=True):
            leads = [lead(record[watched][signal], record["crash_step"]) for record in crashed]
            heights = row + shift + np.linspace(-0.1, 0.1, len(leads))
            axes.plot([NONE if x is None else x for x in leads], heights, "o", color=color, markersize=2.7,
                      markeredgewidth=0, label=f"{watched} {signal}")  # fmt: skip
        draw_false(axes, row, false_alarms(calm, signal))
    across = axes.get_yaxis_transform()
    texts = ("watched from the first step,", "after the first steps")
    for x, text, color in zip((0.02, 0.31), texts, WATCHED.values(), strict=True):
        axes.text(x, -0.95, text, color=color, fontsize=7, va="center", transform=across)
    axes.text(1.05, -0.95, f"false, of {len(calm)}", transform=across, ha="center", va="center", fontsize=7)
    axes.axvspan(-0.85, NONE / 2, color="#F2F2F2", linewidth=0, zorder=0)
    axes.set_xscale("symlog", linthresh=1, linscale=0.45)
    axes.set_xticks([NONE, 0, 1, 10, 100], ["none", *(f"{x}" for x in (0, 1, 10, 100))])
    axes.set_yticks(range(len(signals)), [spoken(signal) for signal in signals])
    _style.draw_rows(axes)
    axes.set(xlabel="first alarm, steps before the crash", xlim=(-0.85, 250), ylim=(len(signals) - 0.4, -1.4))
    axes.set_title(f"Warning before {len(crashed)} crashes in {len(run.records)} runs")
    return figure


def spoken(signal: str) -> str:
    """Return a signal's name with its powers of two set as such."""
    return re.sub(r"2\^(\d+)", lambda match: _style.power_of_two(int(match[1])), signal)


def lead(alarms: list[list[int]], crash: int) -> int | None:
    """Return the steps from the first alarm to the crash; None if there was none up to it."""
    return crash - alarms[0][0] if alarms and alarms[0][0] <= crash else None


def false_alarms(calm: Sequence[Record], signal: str) -> tuple[int, ...]:
    """Return the number of false alarms of a signal, one per way of watching: of runs that do not crash."""
    return tuple(sum(bool(record[watched][signal]) for record in calm) for watched in WATCHED)


def draw_false(axes: Axes, row: int, counts: Sequence[int]) -> None:
    """Draw the false alarms of a signal beside its row."""
    for count, color, x in zip(counts, WATCHED.values(), (1.03, 1.07), strict=True):
        axes.annotate(
            str(count), (1.0, row), xycoords=("axes fraction", "data"), xytext=(x, row), color=color, fontsize=7,
            textcoords=("axes fraction", "data"), va="center", ha="center", annotation_clip=False,
        )  # fmt: skip
