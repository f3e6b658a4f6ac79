"""Training in fp16 needs a larger loss scale than the size of the gradients suggests.

Above, the sizes of the gradients by layer, after training: parameters above each line, activations
below. The bars on top show what fp16 makes of each size at two loss scales. Below, the error of a
gradient by loss scale: dotted if only the result is rounded to fp16, red if the whole backward pass
runs in fp16. The black bar is the distance between the two in bits.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from figures import _style
from figures.results import ArmRecords, Result

DATA = ("gradient_histogram",)
ALT = "Histograms of gradient sizes by layer, above two falling curves of the error by loss scale"
FLUSHED, SUBNORMAL, NORMAL, OVERFLOWED = "#C8442B", "#F2B45A", "#2F6FA8", "#7A4A9E"
CLASSES = (
    (-25, FLUSHED),
    (-14, SUBNORMAL),
    (16, NORMAL),
    (1000, OVERFLOWED),
)  # each up to 2^k, at scale 1
LOWEST, HIGHEST = -46, 20  # exponents shown
FIRST = -149  # exponent of float32's lowest binade
PEAK = 0.3  # share of the elements that reaches the next layer's line
BEARABLE = 0.1  # relative error of a gradient
DOTTED = (0, (1, 1.2))
SMALL = 7  # points
NAMES = {
    "layers": "layer {}",
    "first": "block {}a",
    "second": "block {}b",
    "enter": "input",
    "leave": "output",
    "output": "logits",
}


class Panel(NamedTuple):
    """The view of one arm: its title and the part of the axis that is shown."""

    arm: str
    title: str
    shift: int  # the second window is that of scale 2^shift
    at: float  # where that is written


PANELS = (
    Panel("sigmoid", "Deep sigmoid net", 16, -15),
    Panel("resnet", "Residual net", 16, -15),
    Panel("gpt", "GPT", -14, -28.5),  # its share of a global batch
    Panel("vit", "ViT, loss summed", 16, -15),
)
NEEDS = {"gradient_histogram": tuple(panel.arm for panel in PANELS)}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 5.9)
    grid = figure.add_gridspec(2, len(PANELS), height_ratios=(3.9, 1.5))
    axes = [
        [figure.add_subplot(grid[row, column]) for column in range(len(PANELS))]
        for row in range(2)
    ]
    for (ridges, errors), panel, letter in zip(
        zip(*axes, strict=True), PANELS, "abcd", strict=True
    ):
        units = run.arm(panel.arm)
        draw_ridges(ridges, units)
        draw_windows(ridges, panel)
        draw_errors(errors, units)
        _style.label_panel(ridges, letter, panel.title)
        if letter != "a":
            errors.tick_params(axis="y", labelleft=False)
    name_parts(axes)
    return figure


def shares(units: ArmRecords, kind: str, layer: int) -> NDArray[np.float64]:
    """Return the share of a layer's nonzero elements in each binade from `LOWEST` on, after
    training.
    """
    counts = np.zeros(277)
    for unit in units:
        _, *binades = unit[kind][-1][layer]
        if binades:
            counts[binades[0] - FIRST :][: len(binades) - 1] += binades[1:]
    return np.asarray(counts[LOWEST - FIRST : HIGHEST - FIRST] / max(counts.sum(), 1))


def draw_ridges(axes: Axes, units: ArmRecords) -> None:
    """Draw a line per layer, from the input down to the loss: above it its parameters, below it its
    activations.
    """
    names = units.first["layers"]
    exponents = np.arange(LOWEST, HIGHEST)
    colors = np.array(
        [next(color for high, color in CLASSES if k < high) for k in exponents]
    )
    for row, name in enumerate(names):
        for kind, sign, alpha in (
            ("parameters", 0.95, 1.0),
            ("activations", -0.95, 0.5),
        ):
            heights = sign * shares(units, kind, row) / PEAK
            seen = np.abs(heights) > 1e-3  # less would be ten micrometres high
            axes.bar(
                exponents[seen],
                heights[seen],
                bottom=-row,
                width=1,
                align="edge",
                color=colors[seen],
                alpha=alpha,
                linewidth=0,
                label=f"{kind} {name}",
            )
        axes.axhline(-row, color=_style.BLACK, linewidth=0.4)
        axes.text(
            LOWEST,
            -row + 0.06,
            spoken(name),
            fontsize=SMALL,
            va="bottom",
            bbox=_style.CLEAR,
            zorder=0.5,
        )
    axes.set(
        xlim=(LOWEST, HIGHEST),
        ylim=(-len(names) - 0.1, 0.27 * len(names)),
        xlabel="magnitude |g|",
    )
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    _style.power_ticks(axes.xaxis, range(-40, 21, 20))


def spoken(name: str) -> str:
    """Return a layer's name for the reader: `blocks.0.attention` is attention 1."""
    parts = name.split(".")
    number = next((int(part) + 1 for part in parts if part.isdigit()), 0)
    last = next(part for part in reversed(parts) if not part.isdigit())
    return NAMES.get(last, f"{last} {{}}" if number else last).format(number)


def draw_windows(axes: Axes, panel: Panel) -> None:
    """Draw what fp16 makes of an element of each size at scale 1, and at another."""
    rows = ((0, 0.94, 1.0), (panel.shift, 0.90, panel.at))
    across = axes.get_xaxis_transform()
    for shift, bottom, place in rows:
        low = LOWEST
        for edge, color in CLASSES:
            high = min(max(edge - shift, low), HIGHEST)
            axes.add_patch(
                Rectangle(
                    (low, bottom),
                    high - low,
                    0.035,
                    color=color,
                    linewidth=0,
                    transform=across,
                )
            )
            low = high
        words = axes.text(
            place,
            bottom + 0.016,
            f"scale {_style.power_of_two(shift)}",
            transform=across,
        )
        words.set(color="white", fontsize=SMALL, ha="center", va="center")
    for edge, _ in CLASSES[:3]:
        axes.axvline(
            edge,
            ymax=0.94,
            color=_style.GREY,
            linewidth=0.5,
            linestyle=DOTTED,
            zorder=0,
        )


def draw_errors(axes: Axes, units: ArmRecords) -> None:
    """Draw the relative error after training where nothing overflowed: thin lines are seeds, a
    thick one is their mean.

    The bar says how far the backward pass and one rounding are apart at `BEARABLE`.
    """
    scales = np.array(units.first["log2_scales"])
    crossings = []
    for column, color, line in (
        ("rounded_error", _style.BLACK, DOTTED),
        ("real_error", FLUSHED, "-"),
    ):
        error = np.array([unit[column][-1] for unit in units])
        error[~np.isfinite(error)] = math.nan
        axes.semilogy(
            scales, error.T, color=color, linewidth=0.4, alpha=0.5, linestyle=line
        )
        axes.semilogy(
            scales,
            np.exp(np.log(error).mean(axis=0)),
            color=color,
            linestyle=line,
            label=column,
        )
        crossings.append(float(np.mean([crossing(scales, row) for row in error])))
    once, real = (
        line.get_ydata()
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    )
    axes.fill_between(
        scales, once, np.maximum(once, real), color=FLUSHED, alpha=0.15, linewidth=0
    )
    if np.isfinite(crossings).all():
        bits = f"{crossings[1] - crossings[0]:.0f} bits"
        axes.plot(
            crossings,
            [BEARABLE] * 2,
            color=_style.BLACK,
            linewidth=2.2,
            solid_capstyle="butt",
            label="apart",
        )
        axes.text(crossings[1] + 2.5, BEARABLE, bits, va="bottom", fontweight="bold")
    _style.power_ticks(axes.xaxis, range(-32, 25, 16))
    axes.set_yticks([1e-4, 1e-2, 1])
    axes.minorticks_off()
    axes.set(xlim=(scales[0], scales[-1]), ylim=(1e-4, 8), xlabel="loss scale")


def crossing(scales: NDArray[np.int64], error: NDArray[np.float64]) -> float:
    """Return log2 of the scale at which the error has fallen to `BEARABLE`; NaN if it does not."""
    last = int(np.flatnonzero(error > BEARABLE)[-1:].sum())
    a, b = (
        math.log(error[i] / BEARABLE) for i in (last, min(last + 1, len(error) - 1))
    )
    return (
        float(scales[last] + (scales[last + 1] - scales[last]) * a / (a - b))
        if b < 0 < a
        else math.nan
    )


def name_parts(axes: Sequence[Sequence[Axes]]) -> None:
    """Write names beside what they name, each once."""
    ridges, errors = axes
    for panel, x, word, color, side in (
        (ridges[0], LOWEST, "flushed", FLUSHED, "left"),
        (ridges[1], -16, "subnormal", "#B87400", "center"),
        (ridges[2], 1, "normal", NORMAL, "center"),
        (ridges[3], HIGHEST, "overflows", OVERFLOWED, "right"),
    ):
        panel.text(
            x,
            0.98,
            word,
            color=color,
            fontsize=SMALL,
            ha=side,
            transform=panel.get_xaxis_transform(),
        )
    for word, height, side in (
        ("parameters", 0.36, "bottom"),
        ("activations", -0.1, "top"),
    ):
        ridges[0].text(
            HIGHEST,
            height,
            word,
            color=_style.GREY,
            fontsize=SMALL,
            ha="right",
            va=side,
            bbox=_style.CLEAR,
        )
    errors[0].set_ylabel("relative error")
    place: dict[str, Any] = {"transform": errors[0].transAxes, "fontsize": 7}
    errors[0].text(0.02, 0.27, "rounded\nonce", **place)
    errors[0].text(0.55, 0.84, "fp16\nbackward", color=FLUSHED, va="center", **place)
    shift = PANELS[2].shift
    text = "share of\na global\nbatch"
    errors[2].axvline(
        shift, color=_style.GREY, linewidth=0.6, linestyle=DOTTED, zorder=0
    )
    errors[2].text(
        shift - 1, 1.6e-4, text, color=_style.GREY, fontsize=SMALL, ha="right"
    )
