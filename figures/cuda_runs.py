"""The state machine reproduces most public logs of CUDA runs that it follows.

It follows a log that shows its steps and names a scaler with a preset. The log is reproduced if the
state machine can reach every scale that it prints; the data sheet `experiments/inputs/cuda_runs.md`
explains those that differ. a, gray: the printed scales of a run against the step; blue: the state
machine; orange: where the log contradicts a growth interval three times as long. b: the skipped
steps of each log that prints every overflow, and how many the skip bound (theorems T1 and T10)
allows. c: the scale after the first fall, where short runs stay, against the number of GPUs. A
marker is a configuration, and a line joins those that differ in the number of GPUs alone.
"""

from collections import defaultdict
from collections.abc import Mapping
from math import ceil, floor
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from ampsim.core.json_lines import Record
from figures import _style
from figures.derived_numbers import followed, settled_by_gpus
from figures.results import Result

DATA = ("cuda_runs",)
ALT = "Printed loss scales under those of the state machine, dots below a diagonal, and scales against GPUs"
SOURCE = "public logs of CUDA runs"  # only the state machine ran here
COLUMNS = 2
PROGRAMS = {  # in the order of the panels: name and number of panels
    "megatron": ("Megatron-LM", 2),
    "deepspeed": ("DeepSpeed", 2),
    "fairseq": ("fairseq", 2),
    "arcface": ("GradScaler", 1),
    "swin": ("GradScaler", 1),
}
NAMES = {  # of models, or of repositories whose logs do not name them
    "videomae": "VideoMAE",
    "eva_mim": "EVA",
    "swin_tiny": "Swin-T",
    "swinv2_tiny": "Swin-T",
    "hubert_with_llama": "HuBERT",
    "arcface_torch_1ch": "ArcFace",
    "arcface_torch3d": "ArcFace",
    "llm-action": "GPT",
    "MH-MoE": "MH-MoE",
    "MAE-pytorch": "MAE ViT",
    "VideoMAE_curriculum": "VideoMAE",
    "LaBraM_contrast": "LaBraM",
}
GRAY = "#C8C8C8"
STAGES = {  # what DeepSpeed does with fp16 gradients, by ZeRO stage
    0: ("o", _style.VERMILION, "sum, divide"),
    3: ("s", _style.BLUE, "divide, sum"),
}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.2)
    halves: Any = figure.subfigures(1, 2, width_ratios=(0.85, 1.15))
    left, right = halves
    draw_trajectories(left, run)
    bound, ranks = right.subplots(1, 2)
    draw_bound(bound, run)
    _style.label_panel(bound, "b", "Skipped steps")
    draw_ranks(ranks, run)
    _style.label_panel(ranks, "c", "After the first fall")
    printed = Line2D([], [], color=GRAY, linewidth=3, label="printed by a CUDA run")
    machine = Line2D(
        [],
        [],
        color=_style.BLUE,
        linewidth=0.8,
        label="reproduced by the state machine",
    )
    wrong = Line2D([], [], color=_style.VERMILION, marker="|", linestyle="none")
    wrong.set_label("refutes a longer interval")
    keys = [printed, machine, wrong]
    figure.legend(handles=keys, loc="outside lower left", ncols=3)
    return figure


def draw_trajectories(figure: SubFigure, run: Result) -> None:
    """Draw a small panel per run, by program."""
    shown = [
        (title, *parts)
        for arm, (title, most) in PROGRAMS.items()
        if arm in run.arms
        for parts in runs_of(run, arm, most)
    ]
    grid = figure.subplots(-(-len(shown) // COLUMNS), COLUMNS, squeeze=False).flat
    for axes, (title, row, each) in zip(grid, shown, strict=False):
        draw_trajectory(axes, row, each)
        axes.set_title(
            f"{title}\n{name_of(row)}", fontsize=7, fontweight="normal", pad=3
        )
    figure.supxlabel("step, or row of the log", fontsize=7.5)
    figure.supylabel("log2 of the loss scale", fontsize=7.5)
    figure.suptitle("a  Public runs", x=0.01, ha="left", fontsize=8, fontweight="bold")


def runs_of(run: Result, arm: str, most: int) -> list[tuple[Record, Record]]:
    """Return the shown runs of a program with what is shown, those with the most moves first."""
    record = run.arm(arm).first
    return [(record["runs"][each["run"]], each) for each in record["shown"][:most]]


def name_of(row: Mapping[str, Any]) -> str:
    """Return the model and the number of GPUs, as far as the log names them."""
    name = row["model"] or row["repository"].partition("/")[2]
    name = NAMES.get(name) or (name.upper() if row["model"] else name.partition("-")[0])
    return f"{name}, {row['gpus']} GPUs" if (row["gpus"] or 1) > 1 else name


def draw_trajectory(axes: Axes, row: Mapping[str, Any], shown: Record) -> None:
    """Draw the scales of a run, where the state machine reproduces them, and where the rule with
    three times the interval cannot.
    """
    steps, bits = zip(*shown["points"], strict=True)
    axes.plot(steps, bits, color=GRAY, linewidth=3, drawstyle="steps-post")
    if row.get("breaks") == []:
        axes.plot(steps, bits, color=_style.BLUE, linewidth=0.8, drawstyle="steps-post")
    low = floor(min(bits))
    high = ceil(max(bits))
    axes.set_yticks([low, high])
    forbidden = shown["forbidden"]
    heights = [low - 1.4] * len(forbidden)
    axes.plot(forbidden, heights, "|", color=_style.VERMILION, markersize=3.5)
    axes.set(xlim=(0, steps[-1]), ylim=(low - 2, high + 1))
    unit = " rows" if list(steps) == [*range(len(steps))] else ""
    end = _style.thousands(float(f"{steps[-1]:.2g}")) + unit
    axes.set_xticks([0, steps[-1]], ["0", end])
    axes.get_xticklabels()[1].set_horizontalalignment("right")
    axes.tick_params(labelsize=7, pad=1)


def draw_bound(axes: Axes, run: Result) -> None:
    """Draw how many steps each log skips, and how many it may."""
    rows = [row for row in followed(run) if "most" in row]
    kinds = (
        ("consistent", "o", _style.BLUE, [row for row in rows if not row["breaks"]]),
        (
            "not consistent",
            "x",
            _style.VERMILION,
            [row for row in rows if row["breaks"]],
        ),
    )
    ends = (0.8, 1.3 * max(row["most"] for row in rows))
    axes.plot(ends, ends, color=_style.GREY, linewidth=0.8, label="skip bound")
    for label, marker, color, shown in kinds:
        allowed, skipped = ([row[name] for row in shown] for name in ("most", "skips"))
        size = 5 if marker == "x" else 3
        style: Any = {"marker": marker, "color": color, "markersize": size}
        style["alpha"] = 1 if marker == "x" else 0.6
        axes.plot(allowed, skipped, linestyle="none", label=label, **style)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        _style.number_ticks(axis, [1, 10, 100])
    axes.set(xlabel="skips that the bound allows", ylabel="skipped steps")
    axes.legend(loc="upper left", handlelength=1.2, borderaxespad=0.2)


def draw_ranks(axes: Axes, run: Result) -> None:
    """Draw the settled scale of configurations that differ in the number of GPUs alone."""
    names: dict[tuple[int, float], set[str]] = defaultdict(set)
    for (model, zero, path), cell in settled_by_gpus(run).items():
        marker, color, _ = STAGES[zero]
        sizes = sorted(cell)
        settled = [fmean(cell[size]) for size in sizes]
        axes.plot(sizes, settled, marker=marker, color=color, markersize=3.5)
        name = model.removeprefix("opt-").upper() + " reward" * ("step2" in path)
        names[sizes[-1], settled[-1]].add(name)
    for place, models in names.items():
        text = ", ".join(sorted(models))
        is_last = place[0] == max(size for size, level in names if level == place[1])
        side: Any = {"ha": "left" if is_last else "right", "va": "bottom"}
        offset = (3, 2) if is_last else (-2, -10)
        axes.annotate(
            text, place, offset, textcoords="offset points", fontsize=7, **side
        )
    for zero, (marker, color, label) in STAGES.items():
        name = f"{label} (ZeRO-{zero})"
        axes.plot([], [], marker=marker, color=color, markersize=3.5, label=name)
    axes.set_xscale("log", base=2)
    _style.number_ticks(axes.xaxis, [8, 32, 128, 512])
    axes.set_yticks(range(2, 11))
    axes.set(
        xlabel="GPUs",
        ylabel="log2 of the loss scale",
        xlim=(6.5, 1200),
        ylim=(0.3, 10.9),
    )
    axes.grid(color="#E6E6E6", linewidth=0.6)
    axes.legend(loc="lower left", handlelength=1.2)
