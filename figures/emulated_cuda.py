"""CUDA's autocast lists and matrix units change rounding, and hardly ever whether a step overflows.

Their effect on loss scaling is emulated on a CPU. A row is an emulated device. a: by how much it
changes the gradient, and b: how often it changes whether a step overflows, both at equal weights.
c, d: by how much whole runs differ from those with the CPU's lists and sums. A color is a model,
and a dot of c and d is a seed. No CUDA device computed these numbers.
"""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style
from figures import derived_numbers as q
from figures.results import Array, Result

DATA = ("emulated_cuda",)
ALT = "Four panels with a row of dots per emulated device, most of them near zero"
SOURCE = "Emulated on a CPU: no CUDA device computed these numbers"
COLOR = {
    "sigmoid": _style.BLUE,
    "residual": _style.GREEN,
    "residual12": _style.VERMILION,
    "resnet": _style.ORANGE,
    "gpt": _style.BLACK,
    "vit": _style.SKY,
}
NAME = {"cpu": "CPU's sums", "volta": "Volta", "ampere": "Ampere", "hopper": "Hopper"}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.9)
    a, b, c, d = figure.subplots(1, 4, sharey=True)
    draw(a, run, lambda *arm: np.median(finite(run, arm)))
    a.set(xscale="log", xlabel="relative error")
    _style.label_panel(a, "a", "Gradient")
    draw(b, run, lambda *arm: 100 * q.differing(run, *arm))
    b.set(xlabel="steps (%)", xlim=(-0.1, 2))
    _style.label_panel(b, "b", "Overflow differs")
    draw(c, run, lambda *arm: q.against_cpu(run, *arm, column="skips"))
    c.set(xlabel="difference (steps)")
    _style.label_panel(c, "c", "Skips")
    draw(d, run, lambda *arm: q.against_cpu(run, *arm, column="log2_scale"))
    d.axvspan(-0.1, 0.1, color=_style.GREY, alpha=0.2, linewidth=0)
    d.set(xlabel="difference (bits)")
    d.set_xscale("symlog", linthresh=0.1)
    _style.number_ticks(d.xaxis, [-10, -1, 0, 1, 10])
    _style.label_panel(d, "d", "Mean log2 scale")
    name_rows(a, rows(run))
    figure.legend(
        *a.get_legend_handles_labels(),
        loc="outside lower left",
        ncols=len(COLOR),
        handletextpad=0,
        columnspacing=0.8,
    )
    return figure


def rows(run: Result) -> list[tuple[str, str]]:
    """Return operators and arithmetic of each row, in the order of the file."""
    return [
        (operators, arithmetic) for (_, operators, arithmetic), *_ in q.emulations(run)
    ]


def finite(run: Result, arm: tuple[str, str, str]) -> Array:
    """Return the gradient's errors where neither gradient overflows."""
    errors = run.arm(", ".join(arm)).numbers("gradient_error").ravel()
    return errors[np.isfinite(errors)]


def draw(axes: Axes, run: Result, value: Callable[[str, str, str], object]) -> None:
    """Draw marks of each model in each row, the models a little apart."""
    for place, (task, color) in enumerate(COLOR.items()):
        for row, (operators, arithmetic) in enumerate(rows(run)):
            arms = {f"{task}, {operators}, {arithmetic}", f"{task}, cpu, cpu"}
            if (
                not arms <= run.arms.keys()
            ):  # nothing to draw, or nothing to compare with
                continue
            values = np.atleast_1d(
                np.asarray(value(task, operators, arithmetic), np.float64)
            )
            height = row + 0.11 * (place - 2.5)
            label = task if row == 0 else None
            axes.plot(
                values,
                [height] * len(values),
                "o",
                color=color,
                markersize=2.6,
                markeredgewidth=0,
                alpha=0.8,
                label=label,
            )
    _style.draw_rows(axes)


def name_rows(axes: Axes, pairs: Sequence[tuple[str, str]]) -> None:
    """Write the arithmetic beside each row, and the lists beside each group."""
    names = [NAME.get(arithmetic, arithmetic) for _, arithmetic in pairs]
    axes.set_yticks(range(len(pairs)), names)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    for operators, text in (("cpu", "CPU's lists"), ("cuda", "CUDA's lists")):
        places = [row for row, pair in enumerate(pairs) if pair[0] == operators]
        axes.annotate(
            text,
            (-0.95, float(np.mean(places))),
            xycoords=("axes fraction", "data"),
            rotation=90,
            va="center",
            ha="center",
            annotation_clip=False,
        )
