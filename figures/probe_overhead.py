"""What watching every gradient at every step adds to it: ours, sampling or not, the probe, histc, and wandb.watch."""

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.records import Record
from figures import _style
from figures.results import Result

DATA = ("probe_overhead",)
LANES = {  # height within a model's row, colour, name
    "wandb": (-0.35, _style.VERMILION, "wandb.watch"),
    "bare": (-0.21, _style.GREY, "the bare step"),
    "sampled": (-0.07, _style.GREEN, "ampsim.watch, sampling"),
    "probe": (0.07, _style.BLUE, "probe"),
    "histc": (0.21, _style.ORANGE, "loop of histc"),
    "watch": (0.35, _style.SKY, "ampsim.watch"),
}


def plot(run: Result) -> Figure:
    (record,) = run.records
    rows = record["rows"]
    figure = _style.new_figure(_style.ONE_COLUMN, 0.75 + 0.75 * len(rows))
    axes = figure.subplots()
    axes.set_xscale("log")
    for place, row in enumerate(rows):
        axes.axhspan(place - 0.45, place + 0.45, color="#F4F4F4", linewidth=0, zorder=0)
        for arm in LANES:
            draw(axes, place, row, arm)
    for arm, (height, color, name) in LANES.items():
        times, right = milliseconds(rows[0], arm), arm not in ("bare", "wandb")
        axes.annotate(name, (max(times) if right else min(times), height), (6 if right else -6, 0),
                      textcoords="offset points", ha="left" if right else "right", va="center", color=color,
                      fontsize=6.5)  # fmt: skip
    axes.set_yticks(range(len(rows)), [describe(row) for row in rows], linespacing=1.3)
    axes.tick_params(axis="y", length=0)
    low, high = (f(f(milliseconds(row, arm)) for row in rows for arm in LANES) for f in (min, max))
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(low / 1.5, high * 4), xlabel="ms: the bare step, and what each adds")
    axes.set_title("What watching gradients adds to a step", x=-0.3)
    return figure


def draw(axes: Axes, place: int, row: Record, arm: str) -> None:
    """Draw a dot at the middle trial, a line from the lowest to the highest; at wandb's its ratio to the probe."""
    height, color, _ = LANES[arm]
    times = milliseconds(row, arm)
    axes.plot([min(times), max(times)], [place + height] * 2, color=color, linewidth=1.2)
    axes.plot([statistics.median(times)], [place + height], "o", color=color, markersize=3.6, markeredgewidth=0)
    if arm == "wandb":
        ratio = f"{statistics.median(row['ratios'][arm]):.1f} ×"
        axes.annotate(ratio, (max(times), place + height), (6, 0), textcoords="offset points", va="center", color=color,
                      fontsize=6.5)  # fmt: skip


def milliseconds(row: Record, arm: str) -> Sequence[float]:
    """Return one time per trial."""
    return [time / 1000 for time in (row["bare"] if arm == "bare" else row["above"][arm])]


def describe(row: Record) -> str:
    """Return a model's kind and shape, then tensors and their elements."""
    kind, _, shape = row["size"].partition(" ")
    name = {"gpt": "GPT", "gpt2": "GPT-2", "resnet": "ResNet"}[kind]
    elements = row["elements"] / 1000
    amount = f"{elements / 1000:.1f}M" if elements >= 1000 else f"{elements:.0f}k"
    return f"{name} {shape.replace('x', ' × ')}\n{row['tensors']} tensors, {amount}"
