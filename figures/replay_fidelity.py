"""Rules replayed over recorded runs, against runs that really had these rules: skips, scales, trajectories."""

from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.records import Record
from figures import _style, results
from figures.results import ArmRecords, Result

DATA = ("replay_fidelity",)
REFERENCE = {  # recording -> name, colour, marker
    "fp32": ("fp32 run", _style.BLACK, "s"),
    "fp32 tried": ("fp32 run, tried", _style.VERMILION, "D"),
}
GREENS = ("#9ADBB8", "#35B779", "#31688E", "#440154")  # of runs in fp16, by growth interval
NETWORK = {"relu": "ReLU network, SGD", "sigmoid": "Sigmoid network, Adam"}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.6)
    axes = figure.subplot_mosaic("aaabbb;ccddee", height_ratios=(1, 1.1))
    for letter, network in zip("ab", NETWORK, strict=True):
        draw_trajectories(axes[letter], run, network)
        _style.label_panel(axes[letter], letter, NETWORK[network])
    draw_skips(axes["c"], run)
    for letter, network in zip("de", NETWORK, strict=True):
        draw_distances(axes[letter], run, network)
        _style.label_panel(axes[letter], letter, f"Off by: {NETWORK[network].split(',')[0]}")
    axes["b"].sharey(axes["a"])
    axes["e"].set_ylabel("")
    return figure


def traces(run: Result) -> dict[str, tuple[str, str, str]]:
    """Return the name, colour and marker of each recording that rules are replayed over."""
    intervals = run.config["intervals"]
    names = [f"run with G = {intervals[0]}", *(f"G = {interval}" for interval in intervals[1:])]
    looks = {f"G={g}": (name, color, "o") for g, name, color in zip(intervals, names, GREENS, strict=True)}
    return REFERENCE | looks


def replay(record: Record, trace: str, interval: int) -> Record:
    """Return one rule over one recording."""
    return next(r for r in record["replays"] if (r["trace"], r["interval"]) == (trace, interval))


def draw_trajectories(axes: Axes, run: Result, network: str) -> None:
    """Draw one rule: its real run behind, its replays on top."""
    record, steps, shown = run.arm(network).first, run.steps, run.config["shown"]
    real = results.in_force(record["runs"][f"G={shown}"]["log2_changes"], steps)
    axes.step(np.arange(steps), real, where="post", color="#C8C8C8", linewidth=3.6, label="real")
    ends = []
    for place, (trace, (_, color, _)) in enumerate(traces(run).items()):
        bits = results.in_force(replay(record, trace, shown)["log2_changes"], steps)
        # So that equal ones can be told apart.
        axes.step(np.arange(steps), bits + 0.05 * (place - 2.5), where="post", color=color, linewidth=0.8, label=trace)
        ends.append(bits[-1])
    _style.power_ticks(axes.yaxis, range(12, 22, 2))
    axes.set(xlabel="step", ylabel=f"loss scale, G = {shown}", xlim=(0, steps), ylim=(13.6, 20.6))


def draw_skips(axes: Axes, run: Result) -> None:
    """Draw replayed against real: every seed, rule and recording."""
    rng = np.random.default_rng(0)  # dots on whole numbers would lie on one another
    top = 160.0
    axes.plot([3, top], [3, top], color=_style.GREY, linewidth=0.7, label="equal")
    for trace, (_, color, marker) in traces(run).items():
        for record in run.records:
            for interval in run.config["intervals"]:
                x, y = record["runs"][f"G={interval}"]["skips"], replay(record, trace, interval)["skips"]
                spread = 2 ** rng.uniform(-0.06, 0.06, 2)
                axes.plot(x * spread[0], y * spread[1], marker, color=color, markersize=2.6, markeredgewidth=0,
                          alpha=0.8, label=trace)  # fmt: skip
    for interval in run.config["intervals"]:
        place = np.mean([r["runs"][f"G={interval}"]["skips"] for r in run.records])
        axes.text(place / 1.25, place * 1.35, f"G = {interval}", fontsize=7, color=_style.GREY, ha="right")
    ticks = [5, 10, 20, 50, 100]
    axes.set(xscale="log", xlabel="skips, real run", xlim=(1.2, top))
    axes.set(yscale="log", ylabel="skips, replayed", ylim=(3.6, 210))
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_yticks(ticks, map(str, ticks))
    axes.minorticks_off()
    _style.label_panel(axes, "c", "Skips")


def between_seeds(units: ArmRecords, interval: int, steps: int) -> float:
    """Return how far apart, in bits, the real runs of two seeds with one rule are, the mean over pairs and steps."""
    runs = [results.in_force(r["runs"][f"G={interval}"]["log2_changes"], steps) for r in units]
    return float(np.mean([np.abs(a - b).mean() for a, b in combinations(runs, 2)]))


def draw_distances(axes: Axes, run: Result, network: str) -> None:
    """Draw bits between the replayed and the real scale, a dot per seed; the bars: between two seeds."""
    intervals, units = run.config["intervals"], run.arm(network)
    for x, interval in enumerate(intervals):
        height = between_seeds(units, interval, run.steps)
        axes.bar(x, height, width=0.86, color="#E6E6E6", label=f"seeds G={interval}", zorder=0)
        for place, (trace, (_, color, marker)) in enumerate(traces(run).items()):
            y = [replay(record, trace, interval)["distance"] for record in units]
            axes.plot([x + 0.13 * (place - 2.5)] * len(y), y, marker, color=color, markersize=2.6, markeredgewidth=0,
                      clip_on=False, label=f"{trace} G={interval}")  # fmt: skip
    axes.set_xticks(range(len(intervals)), [str(g) for g in intervals])
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="G of the rule", ylabel="bits between trajectories", ylim=(0, 2.2))
    if network == "relu":
        for row, (name, color, _) in enumerate([*traces(run).values(), ("bars: two seeds", _style.GREY, "")]):
            axes.text(0.98, 0.98 - 0.085 * row, name, color=color, transform=axes.transAxes, va="top", ha="right",
                      fontsize=7)  # fmt: skip
