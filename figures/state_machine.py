"""State diagram of the scaler, computed by applying `update` with and without an overflow to every
reachable state.
"""

import itertools
import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from ampsim.core.machine import Rule, State, init, update
from figures import _style

DATA = ()  # drawn from the machine itself
RULE = Rule(init_scale=2.0**16, growth_interval=3, min_scale=2.0**15, max_scale=2.0**18)
CLEAN, OVERFLOW = _style.BLUE, _style.VERMILION
RADIUS = 11  # points, of a state

Edge = tuple[State, State, bool]  # from, to, found_inf


def reachable(rule: Rule) -> list[Edge]:
    """Return every transition between the states that any overflow sequence can reach, breadth first."""
    first = init(rule)
    seen, todo, edges = {first}, [first], []
    while todo:
        state = todo.pop(0)
        for found_inf in (False, True):
            after = update(rule, state, found_inf)
            edges.append((state, after, found_inf))
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return edges


def place(state: State) -> tuple[float, float]:
    """Return where a state stands: (growth tracker, log2 of the scale)."""
    return float(state.growth_tracker), math.log2(state.scale)


def plot() -> Figure:
    figure = _style.new_figure(_style.ONE_COLUMN, 3.0)
    axes = figure.subplots()
    edges = reachable(RULE)
    states = list(dict.fromkeys(itertools.chain.from_iterable(edge[:2] for edge in edges)))
    for edge in edges:
        draw_edge(axes, *edge)
    for state in states:
        x, y = place(state)
        start = state == init(RULE)
        axes.plot(x, y, "o", markersize=2 * RADIUS, color="white", markeredgecolor=_style.BLACK,
                  markeredgewidth=1.4 if start else 0.7, zorder=3)  # fmt: skip
        axes.text(x, y, _style.power_of_two(y), ha="center", va="center", fontsize=7, zorder=4)
    decorate(axes, states)
    return figure


def draw_edge(axes: Axes, before: State, after: State, found_inf: bool) -> None:
    """Draw a finite step in blue, an overflow in orange, and a loop if a state leads to itself."""
    (x0, y0), (x1, y1) = place(before), place(after)
    start, end, bend, shrink = (
        (x0, y0),
        (x1, y1),
        curvature(x0, y0, x1, y1, found_inf=found_inf),
        RADIUS,
    )
    if before == after:  # from rim to rim, on the outer side
        start, end, bend, shrink = (x0 - 0.132, y0 - 0.096), (x0 - 0.024, y0 - 0.276), 1.9, 0
    arrow = FancyArrowPatch(
        start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>", mutation_scale=6, linewidth=0.9,
        shrinkA=shrink, shrinkB=shrink, color=OVERFLOW if found_inf else CLEAN, zorder=2,
    )  # fmt: skip
    arrow.set_label("overflow" if found_inf else "clean")
    axes.add_patch(arrow)


def curvature(x0: float, y0: float, x1: float, y1: float, *, found_inf: bool) -> float:
    """Return no bend, but for the ways back along a row: they go around the outside of the diagram."""
    if y0 != y1 or x1 > x0:
        return 0.0
    return -0.35 if found_inf else 0.35


def decorate(axes: Axes, states: list[State]) -> None:
    """Label the axes, without a frame: columns are the growth tracker, rows the scale, which stands in the states."""
    xs, ys = zip(*map(place, states), strict=True)
    axes.set(xlim=(min(xs) - 0.45, max(xs) + 0.3), ylim=(min(ys) - 0.75, max(ys) + 0.75))
    axes.set(xlabel="growth tracker (consecutive finite steps)", ylabel="loss scale")
    axes.set_xticks(sorted(set(xs)), [f"{x:g}" for x in sorted(set(xs))])
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    x, y = place(init(RULE))
    axes.annotate(
        "start",
        (x, y),
        (-RADIUS - 3, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=7,
    )
    for x, text, color in ((0.36, "finite step", CLEAN), (0.72, "overflow", OVERFLOW)):
        axes.text(x, 1.0, text, color=color, transform=axes.transAxes, ha="center", va="bottom")
    for x, y, text, color in ((1.5, 17.36, "growth", CLEAN), (1.5, 16.64, "backoff", OVERFLOW)):
        axes.text(
            x,
            y,
            text,
            color=color,
            fontsize=7,
            ha="center",
            va="center",
            bbox=_style.CLEAR,
            zorder=3,
        )
