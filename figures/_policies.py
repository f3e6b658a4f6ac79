"""What the two figures of policies share: a colour per family, traces of the scale, and a row per policy."""

import re
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style

COLOR = {"backoff": _style.BLUE, "G=": _style.BLUE, "deduplicated": _style.VERMILION, "probe": _style.ORANGE,
         "headroom": _style.GREEN, "LogMax": _style.PURPLE,
         "ratio": _style.BLACK, "floor": _style.GREY, "fp32": _style.BLACK}  # fmt: skip


def new_figure(
    columns: Mapping[str, tuple[str, str]], height: float
) -> tuple[Figure, Axes, dict[str, Axes]]:
    """Return a figure, its wide panel on top, and below that a panel per column of the data, with the same rows.

    Args:
        columns: title and unit by column of the data.
        height: that of the lower panels, over that of the wide one.
    """
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.35)
    grid = figure.add_gridspec(2, len(columns), height_ratios=(1, height))
    wide, below = figure.add_subplot(grid[0, :]), dict[str, Axes]()
    for place, (key, (title, unit)) in enumerate(columns.items()):
        below[key] = figure.add_subplot(grid[1, place], sharey=next(iter(below.values()), None))
        below[key].tick_params(labelleft=place == 0)
        _style.label_panel(below[key], "bcdef"[place], title)
        below[key].set_xlabel(unit)
    return figure, wide, below


def draw_traces(
    axes: Axes,
    steps: Sequence[int],
    log2_scales: Mapping[str, Sequence[float]],
    colors: Mapping[str, str],
    gap: float,
) -> None:
    """Draw the scale under a few policies, each named where it ends."""
    for policy, color in colors.items():
        axes.step(
            steps, log2_scales[policy], where="post", color=color, linewidth=0.9, label=policy
        )
    _style.name_ends(
        axes,
        [log2_scales[policy][-1] for policy in colors],
        gap,
        map(named, colors),
        colors.values(),
    )
    axes.set_xlim(steps[0], steps[-1])


def named(policy: str) -> str:
    """Return a policy's name with powers of two as such."""
    return re.sub(r"2\^(\d+)", lambda power: _style.power_of_two(int(power[1])), policy)


def color(policy: str) -> str:
    """Return the colour of a policy's family, with whose name its own begins."""
    return next(color for family, color in COLOR.items() if policy.startswith(family))


def prepare_rows(axes: Axes, names: Sequence[str], ticks: Sequence[float] | None) -> None:
    """Give each policy a row, the first on top; with `ticks`, on a logarithmic scale that shows zero."""
    if ticks:
        axes.set_xscale("symlog", linthresh=ticks[1])
        _style.number_ticks(axes.xaxis, ticks)
        axes.set_xlabel(f"{axes.get_xlabel()}, symlog")
    axes.set_yticks(range(len(names)), list(map(named, names)))
    axes.set_ylim(len(names) - 0.5, -0.5)
    _style.draw_rows(axes)
