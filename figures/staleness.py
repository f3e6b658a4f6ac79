"""Cost of a loss scale that is k steps late: skipped steps, unused bits, and consecutive skips."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core.json_lines import Record
from figures import _style
from figures.results import Result

DATA = ("staleness",)
COLOR = {"cumulative": _style.BLUE, "deduplicated": _style.VERMILION, "probe": _style.GREEN}
MARKER = {"cumulative": "o", "deduplicated": "s", "probe": "^"}
PANELS = {
    "skip_rate": ("Skipped steps (%)", 100.0),
    "headroom": ("Unused range (bits)", 1.0),
    "burst": ("Consecutive skips", 1.0),
}


def plot(run: Result) -> Figure:
    depths = run.config["depths"]
    figure = _style.new_figure(_style.TWO_COLUMNS, 3.4)
    axes = figure.subplots(2, 3)
    rows = run.one(policy=None).first["rows"]
    for column, (key, (title, factor)) in enumerate(PANELS.items()):
        draw_standing(axes[0][column], rows, key, factor)
        draw_trained(axes[1][column], run, depths, key, factor)
        for row in (0, 1):
            _style.label_panel(axes[row][column], "abcdef"[3 * row + column], title)
            axes[row][column].set(xlim=(-0.3, max(depths) + 0.3), xticks=depths)
        axes[1][column].set_xlabel("k (steps that the scale is late)")
    axes[0][0].set_ylabel(f"constant threshold, G={run.config['interval']}")
    axes[1][0].set_ylabel(f"fp16 training, G={run.config['interval']}")
    note(axes[0][1], "markers: measured\nlines: closed form")
    note(axes[0][2], "cumulative and\ndeduplicated are equal")
    note(axes[1][1], f"markers: {_style.seeds(run)}\nlines: their means", 0.4)
    label(axes[0][0], rows)
    return figure


def note(axes: Axes, text: str, y: float = 0.94) -> None:
    """Say what is drawn how, in a corner that is free."""
    axes.text(0.04, y, text, transform=axes.transAxes, va="top", fontsize=7, color=_style.GREY)


def draw_standing(axes: Axes, rows: Sequence[Record], key: str, factor: float) -> None:
    """Draw what is measured as markers, and the closed form as the line under them."""
    for place, (policy, color) in enumerate(COLOR.items()):
        mine = [row for row in rows if row["policy"] == policy]
        depths = [row["k"] for row in mine]
        predicted, measured = (
            [factor * row[key] for row in found] for found in ([r["predicted"] for r in mine], mine)
        )
        axes.plot(depths, predicted, color=color, linewidth=0.9, label=f"{policy} T5")
        axes.plot(depths, measured, MARKER[policy], color=color, markersize=6 - 1.5 * place, markerfacecolor="white",
                  markeredgewidth=1.0, label=policy, clip_on=False)  # fmt: skip
    axes.set_ylim(0, None)


def draw_trained(axes: Axes, run: Result, depths: Sequence[int], key: str, factor: float) -> None:
    """Draw a dot per seed, and a line through the means."""
    for place, (policy, color) in enumerate(COLOR.items()):
        units = [run.one(policy=policy, k=k) for k in depths]
        values = np.array([[factor * value(record, key) for record in seeds] for seeds in units])
        shift = 0.09 * (place - 1)
        x = np.repeat(np.array(depths, dtype=float)[:, None] + shift, values.shape[1], axis=1)
        axes.plot(
            x, values, MARKER[policy], color=color, markersize=2.5, markeredgewidth=0, clip_on=False
        )
        axes.plot(x[:, 0], values.mean(axis=1), color=color, linewidth=0.9, label=f"{policy} mean")
    axes.set_ylim(0, None)


def value(record: Record, key: str) -> float:
    """Return the worst burst, or a rate."""
    return float(max(record["bursts"], default=0) if key == "burst" else record[key])


def label(axes: Axes, rows: Sequence[Record]) -> None:
    """Name the policies once, where they are apart."""
    last = {row["policy"]: 100 * row["predicted"]["skip_rate"] for row in rows}
    axes.text(
        2.3,
        0.82 * last["deduplicated"],
        "deduplicated",
        color=COLOR["deduplicated"],
        fontsize=7,
        ha="right",
    )
    axes.text(
        4.2,
        last["cumulative"] + 1.1,
        "cumulative",
        color=COLOR["cumulative"],
        fontsize=7,
        ha="right",
    )
    axes.text(4.2, last["probe"] - 1.6, "probe", color=COLOR["probe"], fontsize=7, ha="right")
