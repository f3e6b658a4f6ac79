"""If bad batches come too often, the loss scale falls to zero.

a: the loss scale under several rates of bad batches, which overflow at any scale. The rates are
multiples of the critical rate of theorem T8, whose predictions are dashed. b: how fast the scale
falls. c: the loss at the end. With a minimum scale or a shorter growth interval, the same bad
batches do little harm.
"""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsim.core import theory
from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from figures import _style, results
from figures.results import ArmRecords, Result

DATA = ("overflow_storm",)
ALT = "Loss scales that stay or drift down, and dots of drift and final loss by the rate of bad batches"
COLORS = (_style.GREY, _style.SKY, _style.BLUE, _style.ORANGE, _style.VERMILION)
DASHED = (0, (4, 2))


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.2)
    a, b, c = figure.subplots(1, 3, width_ratios=(1.2, 0.9, 1.2))
    draw_scales(a, run)
    draw_drift(b, run)
    draw_final(c, run)
    return figure


def storms(run: Result) -> dict[float, tuple[ArmRecords, str]]:
    """Return the arms without a mitigation, each with a color, by their rate over the critical one."""
    arms = run.where(growth_interval=run.config["growth_interval"], floor_log2=None)
    by_ratio = sorted(arms, key=lambda arm: arm.settings["ratio"])
    colors = cycle(COLORS)
    return {
        arm.settings["ratio"]: (arm, color)
        for arm, color in zip(by_ratio, colors, strict=False)
    }


def mitigations(run: Result) -> list[tuple[ArmRecords, str, str]]:
    """Return the arms with a mitigation, each with a color and a name."""
    floor = run.config["floor_log2"]
    short = run.config["short_interval"]
    bounded = [
        (arm, _style.GREEN, f"minimum {2**floor}")
        for arm in run.where(floor_log2=floor)
    ]
    frequent = [
        (arm, _style.PURPLE, f"G = {short}") for arm in run.where(growth_interval=short)
    ]
    return [*bounded, *frequent]


def trajectory(record: Record) -> NDArray[np.float64]:
    """Return log2 of the scale before each step and after the last, (steps + 1,)."""
    steps = record["every"] * len(record["mean_losses"])
    return np.asarray(np.log2(results.in_force(record["scale_changes"], steps + 1)))


def half_flushed(run: Result) -> float:
    """Return log2 of the highest scale at which half of a gradient's elements or more were 0."""
    seen = [
        (trajectory(record)[:: record["every"]], np.array(record["zero"]))
        for record in run.records
    ]
    return float(
        max(log2[: len(zero)][zero >= 0.5].max(initial=-np.inf) for log2, zero in seen)
    )


def drift(record: Record) -> float:
    """Return the bits per step, from the first scale to the last."""
    line = trajectory(record)
    return float((line[-1] - line[0]) / (len(line) - 1))


def draw_scales(axes: Axes, run: Result) -> None:
    """Draw a line per seed; dashed, T8's drift from the start on."""
    found = storms(run)
    lines = {
        ratio: [trajectory(record) for record in arm]
        for ratio, (arm, _) in found.items()
    }
    steps = len(lines[max(lines)][0]) - 1
    bottom = min(line.min() for line in lines[max(lines)]) - 12
    flushed = max(bottom, half_flushed(run))
    axes.axhspan(bottom, flushed, color="#EFEFEF", linewidth=0, zorder=0)
    for ratio, (arm, color) in found.items():
        for line in lines[ratio]:
            axes.step(
                np.arange(steps + 1),
                line,
                where="post",
                color=color,
                linewidth=0.6,
                label=f"{ratio:g}",
            )
        unit = arm.first
        slope = theory.bad_step_drift(
            Rule(growth_interval=unit["interval"]), unit["rate"]
        )
        if slope < 0:
            ends = [line[0], line[0] + slope * steps]
            axes.plot(
                [0, steps],
                ends,
                color=_style.BLACK,
                linestyle=DASHED,
                zorder=4,
                label=f"theory {ratio:g}",
            )
    ends = [float(np.mean([line[-1] for line in lines[ratio]])) for ratio in found]
    names = [f"{ratio:g} times" for ratio in found]
    colors = [color for _, color in found.values()]
    _style.name_ends(axes, ends, 0.08 * (28 - bottom), names, colors)
    axes.set_yticks(range(-80, 21, 20))
    for height, text, color in (
        (0.03, "≥ half of the elements are zero", _style.GREY),
        (0.12, "dashed: theory", _style.BLACK),
    ):
        place = axes.transAxes
        axes.text(0.02, height, text, transform=place, color=color, fontsize=7)
    axes.set(
        xlabel="step",
        ylabel="log2 of the loss scale",
        ylim=(bottom, 28),
        xlim=(0, steps),
    )
    _style.label_panel(axes, "a", f"Loss scale, {_style.seeds(run)}")


def met(record: Record) -> float:
    """Return the share of steps that were bad in a run, over the critical rate of its growth
    interval.
    """
    steps = record["every"] * len(record["mean_losses"])
    return float(
        len(record["bad"])
        / steps
        / theory.critical_bad_rate(Rule(growth_interval=record["interval"]))
    )


def draw_drift(axes: Axes, run: Result) -> None:
    """Draw a dot per seed against T8; below the critical rate the threshold stops the climb."""
    rule = Rule(growth_interval=run.config["growth_interval"])
    grid = np.linspace(0.02, 2.4, 120)
    critical = theory.critical_bad_rate(rule)
    predicted = [min(0.0, theory.bad_step_drift(rule, x * critical)) for x in grid]
    axes.plot(grid, predicted, color=_style.BLACK, linestyle=DASHED, label="theory")
    for ratio, (arm, color) in storms(run).items():
        rates = [met(row) for row in arm]
        drifts = [drift(row) for row in arm]
        draw_seeds(axes, rates, drifts, color, f"{ratio:g}")
    axes.text(1.7, -0.05, "theory", fontsize=7)
    axes.set(xlabel="share of bad batches / critical rate", xlim=(0, 2.4))
    axes.set(ylabel="bits per step", ylim=(-0.135, 0.02))
    _style.label_panel(axes, "b", "Drift of the scale")


def draw_seeds(
    axes: Axes, x: Sequence[float], y: Sequence[float], color: str, label: str
) -> None:
    """Draw a dot per seed."""
    axes.plot(x, y, "o", color=color, markersize=3, markeredgewidth=0, label=label)


def draw_final(axes: Axes, run: Result) -> None:
    """Draw the losses of each rate, and of each mitigation at the highest rate."""
    named = [(arm, color, f"{ratio:g}") for ratio, (arm, color) in storms(run).items()]
    *_, highest = named[-1]
    named += [
        (arm, color, f"{highest}, {text}") for arm, color, text in mitigations(run)
    ]
    for y, (arm, color, name) in enumerate(named):
        losses = arm.column("test_loss")
        draw_seeds(axes, losses, [y] * len(losses), color, name)
    axes.set_yticks(range(len(named)), [name for *_, name in named])
    axes.invert_yaxis()
    _style.draw_rows(axes)
    top = 1.1 * max(record["test_loss"] for record in run.records)
    axes.set(xlabel="test loss (nats)", xlim=(0, max(1.2, top)))
    axes.set(ylabel="rate / critical rate")
    _style.label_panel(axes, "c", "Final loss")
