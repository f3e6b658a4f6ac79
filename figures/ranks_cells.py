"""What two ranks do with torch's ShardedGradScaler, by cut, optimizer, call of unscale_ and where an element is inf.

A coloured cell went wrong: red, parameters are infinite; orange, the ranks differ; grey, a call raised; hatched, the
optimizer does not step such parameters without a scaler either.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from figures import _style
from figures import quantities as q
from figures.results import Result

DATA = ("ranks_cells",)
CUTS = {"plain": "plain shards", "FSDP1": "FSDP1", "FSDP2": "FSDP2", "DDP": "DDP"}
COLUMNS = [(way, who) for way in ("unscale_", "step") for who in ("none", "rank 0", "rank 1", "both")]
ROWS = [(optimizer, loop) for optimizer in ("SGD", "AdamW") for loop in ("fused", "foreach", "for-loop")]
SHORT = {"none": "–", "rank 0": "0", "rank 1": "1", "both": "both"}
LOOK = {  # letter, colour, words
    "right": ("", "#DCE9F2", "all step, or all skip"),
    "parted": ("≠", "#F2A65A", "ranks part"),
    "infinite": ("∞", "#D7604A", "steps into infinity"),
    "raised": ("!", "#C9C9C9", "step raises, after it wrote"),
    "raised infinite": ("!∞", "#D7604A", "raises, after it wrote infinity"),
}


def plot(run: Result) -> Figure:
    cells = q.rank_cells(run, "torch")
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.0)
    for letter, axes, (cut, title) in zip("abcd", figure.subplots(1, 4, sharey=True), CUTS.items(), strict=True):
        draw(axes, [cell for cell in cells if cell["cut"] == cut])
        _style.label_panel(axes, letter, title)
    patches = [Patch(color=color, label=f"{letter}  {words}".strip()) for letter, color, words in LOOK.values()]
    patches.append(Patch(facecolor="white", edgecolor="#9A9A9A", hatch="////", label="not without a scaler either"))
    figure.legend(handles=patches, loc="outside lower left", ncols=3)
    return figure


def draw(axes: Axes, cells: Sequence[dict[str, Any]]) -> None:
    """Draw a square per cell; from left to right with and without unscale_, each by where an element is inf."""
    found = {((cell["way"], cell["overflow"]), (cell["optimizer"], cell["loop"])): cell["outcome"] for cell in cells}
    for x, column in enumerate(COLUMNS):
        for y, row in enumerate(ROWS):
            place = (x - 0.46 + (0.3 if x > 3 else 0), y - 0.46)
            if (column, row) not in found:
                axes.add_patch(Rectangle(place, 0.92, 0.92, facecolor="white", edgecolor="#9A9A9A", hatch="////", lw=0))
                continue
            letter, color, _ = LOOK[found[column, row]]
            axes.add_patch(Rectangle(place, 0.92, 0.92, color=color, linewidth=0))
            axes.text(place[0] + 0.46, y, letter, ha="center", va="center", fontsize=6.5)
    axes.set(xlim=(-0.6, len(COLUMNS) - 0.1), ylim=(len(ROWS) - 0.4, -0.6), xlabel="with unscale_   |   without")
    axes.set_xticks([x + (0.3 if x > 3 else 0) for x in range(len(COLUMNS))], [SHORT[who] for _, who in COLUMNS])
    axes.set_yticks(range(len(ROWS)), [" ".join(row) for row in ROWS])
    axes.tick_params(length=0, labelsize=6)
    for spine in axes.spines.values():
        spine.set_visible(False)
