"""Conformance results of the training loops of real frameworks.

Each framework's own loop trains a tiny model in float32 with ampsim's test scaler. equinox and flax
nnx have no scaler, so their loops use ampsim's.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import _style
from figures.results import Result

DATA = ("loops",)
COLOR = {
    "gradients_do_not_depend_on_loss_scale": _style.BLUE,
    "skipped_step_changes_nothing": _style.PURPLE,
    "resume_is_exact": _style.GREEN,
    "micro_batches_equal_one_batch": _style.ORANGE,
    "step_changes_parameters": _style.GREY,
    "ranks_equal_one_process": _style.VERMILION,
}
CHECKS = tuple(COLOR)
HOLDS, REPORTED, NEW, SILENT = "#DCE9F2", "#F6C9AA", "#E8935A", "#E6E6E6"
OUTCOMES = {"holds": ("passed", HOLDS), "not asked": ("skipped", SILENT)}  # of the data file
WIDTH = 12  # characters of a check's name on one line


def plot(run: Result) -> Figure:
    frameworks = [record for record in run.records if "checks" in record]
    figure = _style.new_figure(_style.TWO_COLUMNS, 0.75 + 0.13 * len(frameworks))
    draw_frameworks(figure.subplots(), frameworks)
    return figure


def draw_frameworks(axes: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """Draw a cell per framework and check, with its outcome."""
    for y, record in enumerate(records):
        for x, check in enumerate(CHECKS):
            word, color = verdict(record["checks"].get(check))
            axes.add_patch(Rectangle((x - 0.49, y - 0.46), 0.98, 0.92, color=color, linewidth=0))
            axes.text(x, y, word, ha="center", va="center", fontsize=6.5)
    axes.set(xlim=(-0.5, len(CHECKS) - 0.5), ylim=(len(records) - 0.5, -0.5))
    axes.xaxis.set_ticks_position("top")
    axes.set_xticks(
        range(len(CHECKS)),
        [textwrap.fill(check.replace("_", " "), WIDTH) for check in CHECKS],
        fontweight="bold",
    )
    for name, color in zip(axes.get_xticklabels(), COLOR.values(), strict=True):
        name.set_color(color)
    axes.set_yticks(
        range(len(records)), [f"{row['arm']}  {row['version'] or ''}" for row in records]
    )
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def verdict(found: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return what is written in a cell, and its colour."""
    if found is None:
        return "not run", SILENT
    if found["outcome"] in OUTCOMES:
        return OUTCOMES[found["outcome"]]
    if "https://" in (found["known"] or ""):
        return "failed, reported", REPORTED
    return "failed, no report", NEW
