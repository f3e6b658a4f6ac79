"""What the growth interval trades, skipped steps against unused bits, beside T1, T3 and T7."""

from collections import Counter
from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampsim.core import theory
from ampsim.core.machine import Rule
from ampsim.records import Record
from figures import _style
from figures.results import ArmRecords, Array, Result

DATA = ("growth_interval",)
GRID = np.unique(np.geomspace(5, 2000, 80).round().astype(int))
DOTTED = (0, (1, 1.5))
SPLIT = 20  # the arms that split the speed v = a / G otherwise have that of this G
TOGETHER = (200, 500, 2000)  # intervals that lie on one another, named once


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.5)
    axes = figure.subplot_mosaic([["a", "b"], ["c", "d"]])
    draw_rates(axes["a"], run)
    draw_headroom(axes["b"], run)
    draw_trade(axes["c"], run)
    draw_losses(axes["d"], run)
    return figure


def plain(run: Result) -> dict[int, ArmRecords]:
    """Return the arms with torch's factors, by G."""
    return {arm.settings["growth_interval"]: arm for arm in run.where(growth_bits=1.0, backoff_bits=1.0)}


def color(interval: int) -> tuple[float, ...]:
    """Return a colour, light for short intervals and dark for long ones."""
    return tuple(mpl.colormaps["viridis"](0.88 - 0.85 * np.log(interval / 5) / np.log(400)))


def t3(records: Sequence[Record], interval: int) -> tuple[float, float]:
    """Skip rate and unused bits at clean steps, from the ceilings of all runs together."""
    pooled: Counter[int] = Counter()
    for record in records:
        pooled.update(dict(record["ceilings"]))
    x, form = theory.of_ceilings(pooled, interval)
    levels, counts = np.array(sorted(pooled.items()), dtype=np.float64).T
    # Ceilings are counted as powers of two; on average they lie this much above.
    above = np.mean([record["ceiling"][0] for record in records]) - levels @ counts / counts.sum()
    fits = levels[None] >= x[:, None]
    borne = (fits * counts * (levels[None] - x[:, None])).sum(axis=1) / np.maximum((fits * counts).sum(axis=1), 1)
    return form.skip_rate, float(form.clean @ borne + above)


def skipped(arm: ArmRecords) -> Array:
    """Return the share of skipped steps in percent, (seeds,)."""
    return 100 * arm.numbers("skips") / arm.numbers("steps")


def unused(arm: ArmRecords) -> Array:
    """Return the unused bits, (seeds,)."""
    return arm.numbers("headroom")[:, 0]


def draw_dots(axes: Axes, run: Result, values: Callable[[ArmRecords], Array]) -> None:
    """Draw a dot per seed of the arms with torch's factors; G runs along a logarithmic axis."""
    arms = plain(run)
    for interval, arm in arms.items():
        axes.plot([interval] * len(arm), values(arm), "o", color=color(interval), markersize=3.6, markeredgewidth=0,
                  label=f"G={interval}")  # fmt: skip
    axes.set(xscale="log", xlabel="growth interval G", xlim=(4.2, 2400))
    axes.set_xticks(list(arms), [str(g) for g in arms])
    axes.minorticks_off()


def draw_rates(axes: Axes, run: Result) -> None:
    """Draw the skips; T1's bound in the long run, T3 from the ceilings."""
    bound = [100 * theory.skip_rate(Rule(growth_interval=int(g))) for g in GRID]
    axes.plot(GRID, bound, color=_style.GREY, linestyle=DOTTED, label="T1")
    axes.plot(GRID, [100 * t3(run.records, int(g))[0] for g in GRID], color=_style.VERMILION, label="T3")
    draw_dots(axes, run, skipped)
    axes.text(9, 12.5, "T1: no more in the long run", color=_style.GREY, fontsize=7)
    axes.text(5.5, 0.55, "T3, from the\nruns' ceilings", color=_style.VERMILION, fontsize=7)
    axes.text(1900, 0.8, "coming down\nfrom the start", color=color(2000), fontsize=7, ha="right", va="bottom")
    axes.set(yscale="log", ylabel="skipped steps (%)", ylim=(0.04, 25))
    _style.number_ticks(axes.yaxis, [0.1, 1, 10])
    _style.label_panel(axes, "a", "Skips")


def draw_headroom(axes: Axes, run: Result) -> None:
    """Draw the unused bits; half a bit if the ceiling stood still, T3 as it is."""
    axes.axhline(0.5, color=_style.GREY, linestyle=DOTTED, label="T2")
    axes.plot(GRID, [t3(run.records, int(g))[1] for g in GRID], color=_style.VERMILION, label="T3")
    draw_dots(axes, run, unused)
    axes.text(2200, 0.42, "T2: a ceiling that stands still", color=_style.GREY, fontsize=7, ha="right", va="top")
    axes.text(30, 3.3, "T3", color=_style.VERMILION, fontsize=7)
    axes.set(ylabel="unused bits", ylim=(0, 4.4))
    _style.label_panel(axes, "b", "Headroom")


def draw_trade(axes: Axes, run: Result) -> None:
    """Draw skips against unused bits; dotted, T7's product per speed of climb; squares, one speed split otherwise."""
    bits = np.geomspace(0.08, 8, 200)
    for interval in (5, 20, 100, 500):
        speed, name = 1 / interval, f"v = 1/{interval}"
        # T2: x = b / 2, y = v / (b + v)
        axes.plot(bits, 100 * speed / (2 * bits + speed), color=color(interval), linewidth=0.8, linestyle=DOTTED,
                  label=f"T7 {name}", zorder=0)  # fmt: skip
        axes.text(0.105, 112 * speed / (0.21 + speed), name, color=color(interval), fontsize=7)
    for arm in run.arms.values():
        draw_point(axes, arm)
    axes.set(xscale="log", xlabel="unused bits", xlim=(0.1, 8))
    axes.set(yscale="log", ylabel="skipped steps (%)", ylim=(0.12, 80))
    _style.number_ticks(axes.xaxis, [0.1, 0.2, 0.5, 1, 2, 5])
    _style.number_ticks(axes.yaxis, [1, 10])
    _style.label_panel(axes, "c", "The trade, and what T7 allows")


def draw_point(axes: Axes, arm: ArmRecords) -> None:
    """Draw the mean over seeds, tied to each of them, and name it where no dotted line runs through the name."""
    interval, growth, backoff = (arm.settings[key] for key in ("growth_interval", "growth_bits", "backoff_bits"))
    split = (growth, backoff) != (1, 1)
    tint = color(SPLIT if split else interval)
    xs, ys = unused(arm), skipped(arm)
    x, y = xs.mean(), ys.mean()
    for seed in zip(xs, ys, strict=True):
        axes.plot([x, seed[0]], [y, seed[1]], color=tint, linewidth=0.5, alpha=0.7)
    axes.plot(x, y, "s" if split else "o", color=tint, markersize=4.2, markerfacecolor="white" if split else tint,
              markeredgewidth=1.0, label=arm.name)  # fmt: skip
    text = f"a = {growth:g}, b = {backoff:g}" if split else f"G = {interval}"
    if not split and interval in TOGETHER:
        text = f"G = {TOGETHER[0]} to {TOGETHER[-1]}" if interval == TOGETHER[-1] else ""
    left = x < 2 if split else interval >= 50  # where there is room
    axes.annotate(
        text, (min(xs) if left else max(xs), y), (-4 if left else 4, 0), textcoords="offset points", fontsize=6.5,
        color=tint, ha="right" if left else "left", va="center", zorder=1, bbox=_style.CLEAR if text else None,
    )  # fmt: skip


def draw_losses(axes: Axes, run: Result) -> None:
    """Draw where training ends: a dot per seed, a bar at their mean."""
    draw_dots(axes, run, lambda arm: arm.numbers("final_loss"))
    for interval, arm in plain(run).items():
        axes.plot(
            [interval * 0.88, interval / 0.88], [arm.mean("final_loss")] * 2, color=color(interval), linewidth=1.4
        )
    axes.set(ylabel="training loss at the end", ylim=(1.3, 2.1))
    _style.label_panel(axes, "d", "Training does not notice")
