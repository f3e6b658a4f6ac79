"""Seeded fault of each run, and the fault that `ampsim explain` names first. Its rules were not tuned
on these runs.
"""

import re
from collections import Counter

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from figures import _style
from figures.results import Result

DATA = ("explain_faults",)
SHADES = LinearSegmentedColormap.from_list("shades", ["#FFFFFF", _style.BLUE])


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 3.0)
    axes = figure.subplots()
    planted = list(run.arms)
    counts = {kind: Counter(run.arm(kind).column("named")) for kind in planted}
    named = [*planted, *(["another"] if any(each["another"] for each in counts.values()) else [])]
    shares = np.array(
        [[counts[row][column] / len(run.arm(row)) for column in named] for row in planted]
    )
    axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    for (y, row), (x, column) in ((a, b) for a in enumerate(planted) for b in enumerate(named)):
        if counts[row][column]:
            color = "white" if shares[y, x] > 0.5 else _style.BLACK
            axes.text(
                x, y, str(counts[row][column]), ha="center", va="center", color=color, fontsize=8
            )
    axes.set_xticks(range(len(named)), [re.sub("[- ]", "\n", name, count=1) for name in named])
    axes.set_yticks(range(len(planted)), planted)
    axes.tick_params(length=0)
    axes.set_title(f"Number of runs ({len(run.seeds)} per fault)")
    axes.set(xlabel="fault named first", ylabel="seeded fault")
    return figure
