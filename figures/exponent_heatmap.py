"""The loss scale moves the range of fp16 over the gradients of a run.

Color counts the gradient's elements of each size, step by step. Blue elements are kept. Red
elements are lost: they overflow, or become zero. In d, the scale falls until fp16 can hold none of
the gradient.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsim.core.formats import FP16
from ampsim.core.json_lines import Record
from figures import _style, results
from figures.results import ArmRecords, Result

DATA = ("exponent_heatmap",)
ALT = "Color maps of gradient sizes by step, crossed by fp16's limits, above the share of lost elements"
# log2 of the edges of the representable range at scale 1
FLUSHED = math.log2(FP16.smallest_subnormal / 2)
NORMAL = math.log2(FP16.smallest_normal)
OVERFLOWED = math.log2(FP16.overflow_threshold)
SHARES = LogNorm(1e-5, 0.3)  # of the elements, a binade
INSIDE = colormaps["Blues"]
OUTSIDE = colormaps["Reds"]
SHADE = "#E9E9E9"  # outside the representable range
NOT_FINITE = "#5E3C99"
DOTTED = (0, (1, 1.5))


class Panel(NamedTuple):
    """The view of one arm: its title and the part of the axis that is shown."""

    arm: str
    title: str
    bottom: int  # of the exponents shown
    top: int


PANELS = (
    Panel("gpt unscaled", "Transformer, unscaled", -66, 24),
    Panel("gpt dynamic", "Transformer, dynamic scale", -66, 24),
    Panel("sigmoid dynamic", "Deep sigmoid net, dynamic scale", -66, 24),
    Panel("residual dynamic", "Residual net, collapsing scale", -46, 44),
)
NEEDS = {"exponent_heatmap": tuple(panel.arm for panel in PANELS)}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 5.0)
    halves = figure.add_gridspec(2, 1, height_ratios=(1, 0.15))
    grid = halves[0].subgridspec(4, 2, height_ratios=(5, 1.6, 5, 1.6))
    for number, (panel, letter) in enumerate(zip(PANELS, "abcd", strict=True)):
        row, column = divmod(number, 2)
        units = run.arm(panel.arm)
        heat, strip = (figure.add_subplot(grid[2 * row + i, column]) for i in range(2))
        drawn = next(
            record for record in units if record["counts"]
        )  # the seed whose counts were kept
        draw_heat(heat, panel, drawn)
        draw_losses(strip, units)
        _style.label_panel(heat, letter, panel.title)
        heat.set_ylabel("magnitude |g|")
        strip.set(xlabel="step", ylabel="lost (%)")
    draw_bar(
        figure.add_subplot(halves[1].subgridspec(1, 3, width_ratios=(0.75, 2, 0.75))[1])
    )
    name_parts(figure.axes, crash=last_streak(drawn))
    return figure


def shares(record: Record, exponents: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of all elements in each binade at each sample, (exponents, samples)."""
    share = np.zeros((len(exponents), len(record["counts"])))
    for sample, (lowest, *counts) in enumerate(record["counts"]):
        rows = lowest - exponents[0] + np.arange(len(counts))
        shown = (rows >= 0) & (rows < len(exponents))
        share[rows[shown], sample] = np.array(counts)[shown] / record["elements"]
    return share


def picture(record: Record, exponents: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return RGBA, (exponents, samples, 4): darker with more elements; blue in range, red out of
    range.

    Scales are powers of two, so the edges of the range lie between binades (65520 is 2^15.9997).
    """
    share = shares(record, exponents)
    shift = -log2_scales(record)[:: record["every"]]
    kept = (exponents[:, None] >= FLUSHED + shift) & (
        exponents[:, None] + 1 <= round(OVERFLOWED) + shift
    )
    level = np.ma.getdata(SHARES(np.maximum(share, SHARES.vmin or 0.0)))
    image = np.where(kept[..., None], INSIDE(level), OUTSIDE(level))
    image[..., 3] = share > 0
    return np.asarray(image)


def log2_scales(record: Record) -> NDArray[np.float64]:
    """Return log2 of the scale of every optimizer step, (steps,)."""
    return np.asarray(
        np.log2(
            results.in_force(
                record["scale_changes"], record["every"] * len(record["lost"])
            )
        )
    )


def draw_heat(axes: Axes, panel: Panel, record: Record) -> None:
    """Draw elements by binade, the range as two lines, and a tick for each skipped step."""
    exponents = np.arange(panel.bottom, panel.top)
    log2 = log2_scales(record)
    edges = np.arange(len(log2) + 1)
    for limit, name, beyond in (
        (FLUSHED, "flushed", panel.bottom),
        (OVERFLOWED, "overflowed", panel.top),
    ):
        shaded = np.clip(limit - log2, panel.bottom, panel.top)
        axes.stairs(
            shaded,
            edges,
            baseline=beyond,
            fill=True,
            color=SHADE,
            linewidth=0,
            zorder=0,
        )
        axes.stairs(
            limit - log2,
            edges,
            baseline=None,
            color=_style.BLACK,
            linewidth=0.9,
            zorder=3,
            label=name,
        )
    axes.stairs(
        NORMAL - log2,
        edges,
        baseline=None,
        color=_style.BLACK,
        linewidth=0.7,
        linestyle=DOTTED,
        zorder=3,
        label="subnormal",
    )
    axes.imshow(
        picture(record, exponents),
        origin="lower",
        aspect="auto",
        interpolation="none",
        extent=(0, len(log2), panel.bottom, panel.top),
        zorder=1,
    )
    axes.vlines(
        np.array(record["found_inf"]) + 0.5,
        panel.top - 5,
        panel.top - 1.5,
        color=_style.BLACK,
        linewidth=0.5,
        label="skips",
        zorder=4,
    )
    ticks = [k for k in range(-60, 61, 20) if panel.bottom <= k <= panel.top]
    axes.set_yticks(ticks, [_style.power_of_two(k) for k in ticks])
    axes.tick_params(axis="x", labelbottom=False)
    axes.set(xlim=(0, len(log2)), ylim=(panel.bottom, panel.top))


def last_streak(record: Record) -> int:
    """Return the step from which on every step was skipped, to the end."""
    skipped = set(record["found_inf"])
    start: int = record["every"] * len(record["lost"])
    while start - 1 in skipped:
        start -= 1
    return start


def draw_losses(axes: Axes, units: ArmRecords) -> None:
    """Draw a line per seed: the share lost by the fp16 backward pass, and by one rounding."""
    for record in units:
        steps = (np.arange(len(record["lost"])) + 0.5) * record["every"]
        for name, color, line in (
            ("lost", OUTSIDE(0.62), "-"),
            ("not_finite", NOT_FINITE, "-"),
            ("rounded", _style.BLACK, DOTTED),
        ):
            axes.plot(
                steps,
                100 * np.array(record[name]),
                color=color,
                linewidth=0.7,
                linestyle=line,
                label=name,
            )
    axes.set(ylim=(-3, 106), xlim=(0, len(units.first["lost"]) * units.first["every"]))
    axes.set_yticks([0, 50, 100])


def draw_bar(axes: Axes) -> None:
    """Draw both colours against the share of elements in a binade."""
    levels = np.linspace(0, 1, 256)[None, :]
    low, high = (math.log10(x or 1.0) for x in (SHARES.vmin, SHARES.vmax))
    image = np.concatenate([OUTSIDE(levels), INSIDE(levels)])
    axes.imshow(
        image,
        origin="lower",
        aspect="auto",
        extent=(low, high, 0, 2),
        interpolation="none",
    )
    axes.set_xticks(range(-5, 0), [_style.power_of_ten(k) for k in range(-5, 0)])
    axes.set_yticks([1], ["in range\nout of range"], linespacing=0.95)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of all elements in one binade [$2^e$, $2^{e+1}$)")


def name_parts(axes: list[Axes], crash: int) -> None:
    """Write their names into the parts; `crash` is the step of panel d from which on all are
    skipped.
    """
    a, _, b, _, c, strip_c, d, _ = axes[:8]
    grey: dict[str, Any] = {"color": _style.GREY, "va": "center", "fontsize": 7}
    bold: dict[str, Any] = {
        "fontsize": 7.5,
        "weight": "bold",
        "ha": "center",
        "va": "center",
    }
    # The first number is a share of the panel's width, as runs differ in length.
    for panel, x, y, text, color in (
        (a, 0.16, -8, "KEPT", INSIDE(0.8)),
        (a, 0.16, -34, "LOST", "white"),
        (b, 0.86, -29, "KEPT", "white"),
        (b, 0.16, -42, "LOST", "white"),
        (c, 0.59, -11, "KEPT", "white"),
        (d, 0.26, 9, "KEPT", "white"),
        (d, 0.77, 6, "LOST", "white"),
    ):
        panel.text(
            x, y, text, color=color, transform=panel.get_yaxis_transform(), **bold
        )
    for panel, x, height, text, side in (
        (a, 0.5, 2.0, "representable in fp16", "center"),
        (a, 0.985, 20.0, "overflows", "right"),
        (a, 0.985, -7.0, "subnormal below the dots", "right"),
        (b, 0.98, 4.0, "overflows", "right"),
        (b, 0.7, 19.5, "skipped steps", "right"),
        (d, 0.81, -15.0, "flushed to zero", "center"),
    ):
        place = panel.get_yaxis_transform()
        panel.text(x, height, text, ha=side, transform=place, **grey)
    d.axvline(crash, color=_style.BLACK, linewidth=0.5, zorder=2)
    beside: dict[str, Any] = {
        "textcoords": "offset points",
        "va": "center",
        "fontsize": 7,
    }
    d.annotate(
        "overflows", (crash, 20), (-2, 0), ha="right", color=_style.GREY, **beside
    )
    d.annotate(
        "the forward pass overflows:\nevery step is skipped",
        (crash, -37),
        (2, 0),
        **beside,
    )
    handles = [
        strip_c.lines[0],
        strip_c.lines[2],
        strip_c.lines[1],
    ]  # this strip is empty: nothing is lost
    names = (
        "zero after the fp16 backward pass",
        "zero after one rounding",
        "inf or NaN",
    )
    strip_c.legend(
        handles,
        names,
        loc="center",
        ncols=2,
        fontsize=7,
        handlelength=1.6,
        columnspacing=1.0,
        borderpad=0,
    )
