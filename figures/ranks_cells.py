"""Behavior of two ranks with torch's ShardedGradScaler, by sharding, optimizer, call of `unscale_`,
and location of the overflow.

Light blue cells are correct. Red: parameters become infinite. Orange: the ranks desynchronize. Gray:
a call raises. Hatched: the optimizer does not step such parameters even without a scaler.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from figures import _style
from figures import derived_numbers as q
from figures.results import Result

DATA = ("ranks_cells",)
WAYS = ("unscale_", "step")
LOOK = {  # letter, color, label
    "right": ("", "#DCE9F2", "all ranks step or all skip"),
    "parted": ("≠", "#F2A65A", "ranks desynchronize"),
    "infinite": ("∞", "#D7604A", "parameters become infinite"),
    "raised": ("!", "#C9C9C9", "step raises after writing"),
    "raised infinite": ("!∞", "#D7604A", "raises after writing infinity"),
}


def plot(run: Result) -> Figure:
    cells = q.rank_cells(run, "torch")
    figure = _style.new_figure(_style.TWO_COLUMNS, 1.5)
    cuts = run.config["cuts"]
    for letter, axes, cut in zip(
        "abcd", figure.subplots(1, len(cuts), sharey=True), cuts, strict=True
    ):
        draw(axes, cells, cut)
        _style.label_panel(axes, letter, {"plain": "plain shards"}.get(cut, cut))
    patches = [
        Patch(color=color, label=f"{letter}  {words}".strip())
        for letter, color, words in LOOK.values()
    ]
    patches.append(
        Patch(
            facecolor="white",
            edgecolor="#9A9A9A",
            hatch="////",
            label="raises even without a scaler",
        )
    )
    figure.legend(
        handles=patches,
        loc="outside lower left",
        ncols=3,
        labelspacing=0.3,
        borderpad=0,
        borderaxespad=0.2,
    )
    return figure


def draw(axes: Axes, cells: Sequence[dict[str, Any]], cut: str) -> None:
    """Draw a square per cell of a sharding: with and without unscale_, by location of the inf."""
    places = list(dict.fromkeys(cell["overflow"] for cell in cells))
    columns = list(product(WAYS, places))
    rows = list(dict.fromkeys((cell["optimizer"], cell["loop"]) for cell in cells))
    found = {
        (cell["way"], cell["overflow"], cell["optimizer"], cell["loop"]): cell["outcome"]
        for cell in cells
        if cell["cut"] == cut
    }
    left = [x + (0.3 if way == WAYS[-1] else 0) for x, (way, _) in enumerate(columns)]
    for (x, column), (y, row) in product(zip(left, columns, strict=True), enumerate(rows)):
        corner = (x - 0.46, y - 0.46)
        if (*column, *row) not in found:
            axes.add_patch(
                Rectangle(
                    corner, 0.92, 0.92, facecolor="white", edgecolor="#9A9A9A", hatch="////", lw=0
                )
            )
            continue
        letter, color, _ = LOOK[found[*column, *row]]
        axes.add_patch(Rectangle(corner, 0.92, 0.92, color=color, linewidth=0))
        axes.text(x, y, letter, ha="center", va="center", fontsize=7)
    axes.set(
        xlim=(-0.6, left[-1] + 0.6),
        ylim=(len(rows) - 0.4, -0.6),
        xlabel="with unscale_   |   without",
    )
    axes.set_xticks(left, [{"none": "–"}.get(who, who.removeprefix("rank ")) for _, who in columns])
    axes.set_yticks(range(len(rows)), [" ".join(row) for row in rows])
    axes.tick_params(length=0, labelsize=7, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)
