"""Overflows that no scale prevents drive it to 0 above a critical rate; what a spike costs; what warns of a crash."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsim.core import theory
from ampsim.core.machine import Rule
from ampsim.records import Record
from figures import _style
from figures.results import Result

DATA = ("overflow_storm", "spikes", "crash_signals")
STORMS = {  # rate over the critical one -> colour
    "0.25": "#9FD0F0",
    "0.5": _style.SKY,
    "0.8": _style.BLUE,
    "1.25": _style.ORANGE,
    "2": _style.VERMILION,
}
CURES = {"2 floor=2^8": (_style.GREEN, "s", 2.12, "floor $2^8$"), "2 G=4": (_style.PURPLE, "D", 2.24, "G = 4")}
SPIKES = {"spike capped": (_style.BLUE, "o", -0.17), "spike free": (_style.ORANGE, "D", 0.17)}
SIGNALS = {  # as in the data -> as drawn
    "activation > 2^14": "activation > $2^{14}$",
    "3 skips in a row": "3 skips in a row",
    "scale < init / 2^8": "scale < start / $2^8$",
    "gradient norm > 10 medians": "gradient norm > 10 medians",
    "T1 budget exceeded": "more skips than T1's budget",
    "loss > 2 medians": "loss > 2 medians",
    "ceiling fell 4 bits": "ceiling fell 4 bits",
}
WATCHED = {"alarms": _style.BLACK, "alarms_from_10": _style.VERMILION}  # from the first step on, from step 10 on
NONE = -0.55  # where a crash without a warning is drawn
DASHED: Any = (0, (4, 2))


def plot(run: Result, spikes: Result, crashes: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 5.3)
    rows = figure.add_gridspec(2, 1, height_ratios=(1.3, 1))
    upper, lower = rows[0].subgridspec(2, 2, width_ratios=(1.25, 1)), rows[1].subgridspec(1, 2, width_ratios=(0.7, 1))
    draw_scales(figure.add_subplot(upper[:, 0]), run)
    draw_drift(figure.add_subplot(upper[0, 1]), run, run.config["growth_interval"])
    draw_final(figure.add_subplot(upper[1, 1]), run)
    draw_recovery(figure.add_subplot(lower[0]), spikes)
    draw_alarms(figure.add_subplot(lower[1]), crashes)
    return figure


# ------------------------------------------------------------------------------------------------- storms


def trajectory(record: Record) -> NDArray[np.float64]:
    """log2 of the scale before each step and after the last, (steps + 1,)."""
    steps = record["every"] * len(record["mean_losses"])
    starts, values = zip(*record["scale_changes"], strict=True)
    return np.asarray(np.log2(np.repeat(values, np.diff([*starts, steps + 1]))))


def half_flushed(run: Result) -> float:
    """log2 of the highest scale at which half of a gradient's elements or more were 0."""
    storms = [record for record in run.records if record["arm"].startswith("storm")]
    seen = [(trajectory(record)[:: record["every"]], np.array(record["zero"])) for record in storms]
    return float(max(log2[: len(zero)][zero >= 0.5].max(initial=-np.inf) for log2, zero in seen))


def relative_rate(record: Record) -> float:
    """Rate of bad batches over the critical one of the run's own growth interval."""
    critical = theory.critical_bad_rate(Rule(growth_interval=record["interval"]))
    return float(record["rate"] / critical)


def drift(record: Record) -> float:
    """Bits a step, from the first scale to the last."""
    line = trajectory(record)
    return float((line[-1] - line[0]) / (len(line) - 1))


def draw_scales(axes: Axes, run: Result) -> None:
    """A line a seed; dashed, T8's drift from the start on."""
    lines = {name: [trajectory(record) for record in run.arm(f"storm {name}")] for name in STORMS}
    steps = len(lines["2"][0]) - 1
    bottom = min(line.min() for line in lines["2"]) - 12
    axes.axhspan(bottom, half_flushed(run), color="#EFEFEF", linewidth=0, zorder=0)
    for name, color in STORMS.items():
        for line in lines[name]:
            axes.step(np.arange(steps + 1), line, where="post", color=color, linewidth=0.6, label=name)
        unit = run.arm(f"storm {name}").first
        slope = theory.bad_step_drift(Rule(growth_interval=unit["interval"]), unit["rate"])
        if slope < 0:
            axes.plot(
                [0, steps],
                [line[0], line[0] + slope * steps],
                color=_style.BLACK,
                linestyle=DASHED,
                zorder=4,
                label=f"T8 {name}",
            )
    place = bottom
    for name in reversed(STORMS):
        end = float(np.mean([line[-1] for line in lines[name]]))
        place = max(end, place + 6.5)
        _style.label_right(axes, end, place, rf"${name}\,\lambda_c$", STORMS[name])
    ticks = range(-80, 21, 20)
    axes.set_yticks(ticks, [_style.power_of_two(k) for k in ticks])
    axes.text(0.02 * steps, bottom + 4, "most of the gradient is flushed to 0", color=_style.GREY, fontsize=7)
    axes.text(0.02 * steps, bottom + 12, "dashed: T8", fontsize=7)
    axes.set(xlabel="step", ylim=(bottom, 28), xlim=(0, steps))
    _style.label_panel(axes, "a", r"Loss scale; bad batches at rate $\lambda$")


def draw_drift(axes: Axes, run: Result, interval: int) -> None:
    """A dot a seed against T8; below the critical rate the ceiling stops the climb."""
    rule = Rule(growth_interval=interval)
    grid = np.linspace(0.02, 2.4, 120)
    critical = theory.critical_bad_rate(rule)
    predicted = [min(0.0, theory.bad_step_drift(rule, x * critical)) for x in grid]
    axes.plot(grid, predicted, color=_style.BLACK, linestyle=DASHED, label="T8")
    for name, color in STORMS.items():
        units = run.arm(f"storm {name}")
        x = [relative_rate(record) for record in units]
        axes.plot(x, [drift(record) for record in units], "o", color=color, markersize=3, markeredgewidth=0, label=name)
    axes.text(1.55, -0.045, "T8", fontsize=7)
    axes.tick_params(axis="x", labelbottom=False)
    axes.set(ylabel="bits a step", xlim=(0, 2.4), ylim=(-0.135, 0.02))
    _style.label_panel(axes, "b", "Drift of the scale")


def draw_final(axes: Axes, run: Result) -> None:
    """A dot a seed, with the two cures beside the arm that they cure."""
    for name, color in STORMS.items():
        units = run.arm(f"storm {name}")
        losses = [record["test_loss"] for record in units]
        axes.plot([relative_rate(record) for record in units], losses, "o", color=color, markersize=3,
                  markeredgewidth=0, label=name)  # fmt: skip
    for name, (color, marker, x, text) in CURES.items():
        losses = [record["test_loss"] for record in run.arm(f"storm {name}")]
        axes.plot([x] * len(losses), losses, marker, color=color, markersize=2.8, markeredgewidth=0, label=name)
        height = float(np.mean(losses)) + (0.08 if marker == "s" else -0.08)
        _style.label_right(axes, height, height, text, color)
    axes.set(
        xlabel=r"rate of bad batches, $\lambda / \lambda_c$", ylabel="test loss (nats)", xlim=(0, 2.4), ylim=(0, 1.2)
    )
    _style.label_panel(axes, "c", "Final loss")


# ------------------------------------------------------------------------------------------------- spikes


def draw_recovery(axes: Axes, run: Result) -> None:
    """A mark a spike and seed; T4 as a bar."""
    names = []
    for arm, (color, marker, shift) in SPIKES.items():
        for record in run.arm(arm):
            offset = shift + 0.035 * (record["seed"] - 2)
            met = [np.nan if spike["recovery"] is None else spike["recovery"] for spike in record["spikes"]]
            axes.plot(
                np.arange(len(met)) + offset, met, marker, color=color, markersize=2.8, markeredgewidth=0, label=arm
            )
            names = [f"{spike['height']} bits,\n{spike['lasts']} steps" for spike in record["spikes"]]
            foretold = [spike["recovery_t4"] for spike in record["spikes"]]
    axes.hlines(foretold, np.arange(len(names)) - 0.36, np.arange(len(names)) + 0.36, color=_style.BLACK, linewidth=1.1,
                zorder=0, label="T4")  # fmt: skip
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", length=0)
    axes.text(2.42, foretold[2], "T4", va="center", fontsize=7)
    axes.text(-0.4, 112, "held below the ceiling", color=_style.BLUE, fontsize=7, va="center")
    axes.text(-0.4, 102, "at the ceiling", color=_style.ORANGE, fontsize=7, va="center")
    axes.set(
        xlabel="how far below the scale, for how long", ylabel="steps until it is back", xlim=(-0.5, 3.5), ylim=(0, 118)
    )
    _style.label_panel(axes, "d", "Recovery from a spike")


# ------------------------------------------------------------------------------------------------- crashes


def lead(alarms: list[list[int]], crash: int) -> int | None:
    """Steps from the first alarm to the crash; None if there was none up to it."""
    return crash - alarms[0][0] if alarms and alarms[0][0] <= crash else None


def draw_alarms(axes: Axes, run: Result) -> None:
    """A row a signal, a dot a crash; beside it, in how many runs without a crash it was raised."""
    runs = [record for record in run.records if record["arm"].startswith("crash")]
    crashed = [record for record in runs if record["crash_step"] is not None]
    calm = [record for record in runs if record["crash_step"] is None]
    for row, signal in enumerate(SIGNALS):
        for (watched, color), shift in zip(WATCHED.items(), (-0.17, 0.17), strict=True):
            leads = [lead(record[watched][signal], record["crash_step"]) for record in crashed]
            heights = row + shift + np.linspace(-0.1, 0.1, len(leads))
            axes.plot([NONE if x is None else x for x in leads], heights, "o", color=color, markersize=2.7,
                      markeredgewidth=0, label=f"{watched} {signal}")  # fmt: skip
            false = sum(bool(record[watched][signal]) for record in calm)
            axes.annotate(
                str(false), (1.0, row), xycoords=("axes fraction", "data"), xytext=(1.05 if shift < 0 else 1.13, row),
                textcoords=("axes fraction", "data"), color=color, fontsize=7, va="center", ha="center",
                annotation_clip=False,
            )  # fmt: skip
    across = axes.get_yaxis_transform()
    for x, text, color in zip((0.02, 0.44), ("watched from step 0,", "from step 10"), WATCHED.values(), strict=True):
        axes.text(x, -0.95, text, color=color, fontsize=7, va="center", transform=across)
    axes.text(1.09, -0.95, f"false, of {len(calm)}", transform=across, ha="center", va="center", fontsize=7)
    axes.set_xscale("symlog", linthresh=1, linscale=0.45)
    axes.set_xticks([NONE, 0, 1, 10, 100], ["none", "0", "1", "10", "100"])
    axes.set_yticks(range(len(SIGNALS)), list(SIGNALS.values()))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set(xlabel="first alarm, steps before the crash", xlim=(-0.85, 250), ylim=(len(SIGNALS) - 0.4, -1.4))
    _style.label_panel(axes, "e", f"Warning before {len(crashed)} crashes")
