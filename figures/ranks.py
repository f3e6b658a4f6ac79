"""What two ranks do when gradients overflow on one of them or on both, with torch's sharded scaler and with ours."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import _style
from figures.results import Result

DATA = ("ranks",)
NAME = {"torch": "torch's ShardedGradScaler", "ours": "ours, with group="}
RIGHT, PARTED, INFINITE, RAISED = "#DCE9F2", "#F6C9AA", "#E8935A", "#E6E6E6"
MADE = {"shards": "plain, SGD", "FSDP2": "FSDP2, AdamW"}
WAY = {"step": "step", "unscale_": "unscale_"}
Seen = Sequence[Any]  # by one rank: stepped, parameters are finite, scale, error


def plot(run: Result) -> Figure:
    cases = run.records[0]["outcomes"]
    figure = _style.new_figure(_style.TWO_COLUMNS, 1.5)
    for letter, axes, (scaler, name) in zip("ab", figure.subplots(1, 2, sharey=True), NAME.items(), strict=True):
        draw(axes, [case for case in cases if case["scaler"] == scaler])
        _style.label_panel(axes, letter, name)
    return figure


def draw(axes: Axes, cases: Sequence[dict[str, Any]]) -> None:
    """Draw a cell per case: who overflowed, from left to right, and where the gradients lay and who unscaled."""
    columns = list(dict.fromkeys(case["overflow"] for case in cases))
    rows = list(dict.fromkeys((case["gradients"], case["way"]) for case in cases))
    for case in cases:
        word, color = verdict(case["ranks"])
        x, y = columns.index(case["overflow"]), rows.index((case["gradients"], case["way"]))
        axes.add_patch(Rectangle((x - 0.49, y - 0.46), 0.98, 0.92, color=color, linewidth=0))
        axes.text(x, y, word, ha="center", va="center", fontsize=6.5)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel="an element is inf on")
    axes.set_xticks(range(len(columns)), [{"none": "no rank", "both": "both"}.get(name, name) for name in columns])
    axes.set_yticks(range(len(rows)), [f"{MADE[kind]}, {WAY[way]}" for kind, way in rows])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def verdict(ranks: Sequence[Seen]) -> tuple[str, str]:
    """Return what became of one case, in words and as a colour."""
    stepped, finite, scales, errors = zip(*ranks, strict=True)
    if any(errors):
        return ("raises" if all(finite) else "raises, inf"), RAISED
    if not all(finite):
        return "steps into inf", INFINITE
    if len(set(stepped)) > 1 or len(set(scales)) > 1:
        return "one steps", PARTED
    return ("all step" if stepped[0] else "all skip"), RIGHT
