"""What the two figures of policies share: a colour per family, and a row per policy."""

from matplotlib.axes import Axes

from figures import _style

COLOR = {"backoff": _style.BLUE, "deduplicated": _style.VERMILION, "probe": _style.ORANGE, "headroom": _style.GREEN,
         "LogMax": _style.PURPLE, "ratio": _style.BLACK, "floor": _style.GREY, "fp32": _style.BLACK}  # fmt: skip


def color(policy: str) -> str:
    """Return the colour of a policy's family, with whose name its own begins."""
    return next(color for family, color in COLOR.items() if policy.startswith(family))


def prepare_rows(axes: Axes, names: list[str], ticks: list[float] | None) -> None:
    """Give each policy a row, the first on top; with `ticks`, on a logarithmic scale that shows zero."""
    if ticks:
        axes.set_xscale("symlog", linthresh=ticks[1])
        _style.number_ticks(axes.xaxis, ticks)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
