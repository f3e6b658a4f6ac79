"""Rules replayed over recorded runs, against runs that really had these rules: skips, scales, trajectories."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.records import Record
from figures import _style, results
from figures.results import ArmRecords, Result

DATA = ("replay_fidelity",)
# what is replayed over -> its name, colour and marker
SOURCES = {
    "fp32": ("fp32 run", _style.BLACK, "s"),
    "fp32 tried": ("fp32 run, ceilings tried", _style.VERMILION, "D"),
    "fp16": ("fp16 run of another G", _style.BLUE, "o"),
}
NETWORK = {"relu": "ReLU net", "sigmoid": "Sigmoid net"}
SHOWN = "sigmoid"  # the network whose scales are drawn


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.2)
    a, b, c, d = figure.subplots(1, 4, width_ratios=(1.5, 1, 1, 1))
    draw_trajectories(a, run)
    draw_skips(b, run)
    for axes, letter, network in ((c, "c", "relu"), (d, "d", "sigmoid")):
        draw_distances(axes, run, network)
        _style.label_panel(axes, letter, NETWORK[network])
    c.set_ylabel("bits between replay and run")
    d.tick_params(axis="y", labelleft=False)
    d.text(3.5, 2.12, "grey: two seeds", color=_style.GREY, fontsize=7, ha="right", va="top")
    return figure


def replay(record: Record, trace: str, interval: int) -> Record:
    """Return one rule over one recording."""
    return next(r for r in record["replays"] if (r["trace"], r["interval"]) == (trace, interval))


def replays(record: Record, source: str, interval: int) -> Iterator[Record]:
    """Yield one rule over each recording of a kind, but not over the run that had this rule."""
    for found in record["replays"]:
        kind = "fp16" if found["trace"].startswith("G=") else found["trace"]
        if kind == source and found["interval"] == interval and found["trace"] != f"G={interval}":
            yield found


def draw_trajectories(axes: Axes, run: Result) -> None:
    """Draw one rule in one seed: its real run behind, its replays over the float32 run on top."""
    record, steps, shown = run.arm(SHOWN).first, run.steps, run.config["shown"]
    real = results.in_force(record["runs"][f"G={shown}"]["log2_changes"], steps)
    axes.step(np.arange(steps), real, where="post", color="#C8C8C8", linewidth=3.6, label="real")
    for trace in ("fp32", "fp32 tried"):
        bits = results.in_force(replay(record, trace, shown)["log2_changes"], steps)
        axes.step(np.arange(steps), bits, where="post", color=SOURCES[trace][1], linewidth=0.8, label=trace)
    names = [("its own run", "#8A8A8A"), *((f"over the {name}", color) for name, color, _ in SOURCES.values())]
    for row, (text, color) in enumerate(names[:3]):
        axes.text(0.98, 0.99 - 0.1 * row, text, color=color, transform=axes.transAxes, ha="right", va="top", fontsize=7)
    _style.power_ticks(axes.yaxis, range(14, 22, 2))
    axes.set(xlabel="step", ylabel="loss scale", xlim=(0, steps), ylim=(13.6, 22.6))
    _style.label_panel(axes, "a", f"A sigmoid net, G = {shown}")


def draw_marks(axes: Axes, run: Result, rows: ArmRecords, measure: str) -> None:
    """Draw a dot per seed and recording, in a column per growth interval: a replay's distance, or its skips' ratio."""
    for x, interval in enumerate(run.config["intervals"]):
        for place, (source, (_, color, marker)) in enumerate(SOURCES.items()):
            y = [
                found[measure] / (record["runs"][f"G={interval}"]["skips"] if measure == "skips" else 1)
                for record in rows
                for found in replays(record, source, interval)
            ]
            axes.plot([x + 0.24 * (place - 1)] * len(y), y, marker, color=color, markersize=2.6, markeredgewidth=0,
                      clip_on=False, label=f"{source} G={interval}")  # fmt: skip
    axes.set_xticks(range(len(run.config["intervals"])), list(map(str, run.config["intervals"])))
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("G of the rule")


def draw_skips(axes: Axes, run: Result) -> None:
    """Draw replayed over real skips, both networks."""
    axes.axhline(1, color=_style.GREY, linewidth=0.7, zorder=0)
    draw_marks(axes, run, ArmRecords("all", run.records), "skips")
    for row, (name, color, _) in enumerate(SOURCES.values()):
        axes.text(0.02, 0.99 - 0.1 * row, name.split(",")[0] if row == 0 else name.replace("fp32 run, ", ""),
                  color=color, transform=axes.transAxes, va="top", fontsize=7)  # fmt: skip
    axes.set(ylabel="skips, replayed / real", ylim=(0, 2.4))
    _style.label_panel(axes, "b", "Skips, both nets")


def between_seeds(units: ArmRecords, interval: int, steps: int) -> float:
    """Return how far apart, in bits, the real runs of two seeds with one rule are, the mean over pairs and steps."""
    runs = [results.in_force(r["runs"][f"G={interval}"]["log2_changes"], steps) for r in units]
    return float(np.mean([np.abs(a - b).mean() for a, b in combinations(runs, 2)]))


def draw_distances(axes: Axes, run: Result, network: str) -> None:
    """Draw bits between the replayed and the real scale; the bars: between two seeds."""
    for x, interval in enumerate(run.config["intervals"]):
        height = between_seeds(run.arm(network), interval, run.steps)
        axes.bar(x, height, width=0.86, color="#E6E6E6", label=f"seeds G={interval}", zorder=0)
    draw_marks(axes, run, run.arm(network), "distance")
    axes.set(ylim=(0, 2.2), yticks=[0, 0.5, 1, 1.5, 2])
