"""What a wrong initial loss scale costs: a step per bit above the ceiling, G steps per bit below it."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsim.records import Record
from figures import _style, results
from figures.results import Result

DATA = ("init_scale",)
NETWORK = {"sigmoid": _style.BLUE, "residual": _style.ORANGE}
SLOWER = {20: _style.BLUE, 50: _style.PURPLE, 200: _style.VERMILION}  # growth intervals, from 2^0
HEIGHTS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.6)
    axes = figure.subplot_mosaic([["a", "a", "b"], ["c", "d", "d"]])
    draw_scales(axes["a"], run)
    draw_costs(axes["b"], run)
    draw_learning(axes["c"], run)
    draw_losses(axes["d"], run)
    return figure


def start(record: Record) -> int:
    """Return log2 of the first scale."""
    return int(record["settings"]["init_log2"])


def named(run: Result, task: str, interval: int) -> list[Record]:
    """Return the units of one network and one growth interval."""
    return [record for arm in run.where(task=task, growth_interval=interval) for record in arm]


def color(k: int) -> tuple[float, ...]:
    """Return the colour of a start at 2^k, from cold to hot."""
    return tuple(mpl.colormaps["plasma"](0.02 + 0.86 * k / 32))


def draw_scales(axes: Axes, run: Result) -> None:
    """Draw every start of the sigmoid network; the first seed thick."""
    steps, interval = run.config["steps"], run.config["interval"]
    shown = named(run, "sigmoid", interval)
    sought = np.arange(0, steps, run.config["seek_every"])
    for record in shown:
        axes.plot(sought, record["ceilings"], ".", color="#BBBBBB", markersize=3.5, markeredgewidth=0, zorder=0)
    for record in shown[::-1]:
        line = np.log2(results.in_force(record["scale_changes"], steps))
        k, first = start(record), record["seed"] == run.config["seeds"][0]
        width, alpha = (1.3, 1.0) if first else (0.5, 0.5)
        axes.step(np.arange(steps), line, where="post", color=color(k), linewidth=width, alpha=alpha,
                  label=f"2^{k}, seed {record['seed']}")  # fmt: skip
    thin = {"arrowstyle": "-", "linewidth": 0.6}
    axes.annotate("a step per bit", (14, 26.5), (50, 28.2), fontsize=7, va="center", arrowprops=thin)
    axes.text(230, 7.4, f"{interval} steps per bit", fontsize=7)
    axes.text(395, 21.7, "dots: the ceiling", fontsize=7, color=_style.GREY, ha="right")
    _style.power_ticks(axes.yaxis, range(0, 33, 4))
    axes.set(xlabel="step", ylabel="loss scale", xlim=(-4, steps), ylim=(-0.8, 33))
    _style.label_panel(axes, "a", "Many starts, one ceiling")


def draw_costs(axes: Axes, run: Result) -> None:
    """Draw steps until the scale has arrived, measured and from the first batch's ceiling."""
    for place, (task, tint) in enumerate(NETWORK.items()):
        units = named(run, task, run.config["interval"])
        ceiling = float(np.mean([r["ceilings"][0] for r in units]))
        k = np.linspace(0, 32, 321)
        line = np.where(k < ceiling, run.config["interval"] * (ceiling - k), k - ceiling)
        axes.plot(k, squashed(line), color=tint, linewidth=0.9, label=f"{task} predicted")
        arrived = [r for r in units if r["climb_steps"] is not None]
        low = [r for r in arrived if r["predicted"]["climb_steps"] > 0]
        high = [r for r in arrived if r["predicted"]["climb_steps"] == 0]
        for part, marker, key in ((low, "^", "climb_steps"), (high, "v", "lost_steps")):
            axes.plot(
                [start(r) + 0.5 * place for r in part], squashed([r[key] for r in part]), marker, color=tint,
                markersize=3.6, markerfacecolor="none", markeredgewidth=0.8, label=f"{task} {key}",
            )  # fmt: skip
    axes.text(0.5, squashed([17])[0], "climbing", fontsize=7, ha="left")
    axes.text(32.6, squashed([34])[0], "skipped", fontsize=7, ha="right")
    for height, (text, tint) in zip(
        (330, 200, 120), [*NETWORK.items(), ("lines: closed form", _style.GREY)], strict=True
    ):
        axes.text(16.5, squashed([height])[0], text, fontsize=7, color=tint)
    axes.set_yticks(squashed(HEIGHTS), [str(n) for n in HEIGHTS])
    _style.power_ticks(axes.xaxis, range(0, 33, 8))
    axes.set(xlabel="first loss scale", ylabel="steps", ylim=(-0.15, squashed([560])[0]), xlim=(-1, 33.5))
    _style.label_panel(axes, "b", "Until it has arrived")


def squashed(steps: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return where a number of steps stands: logarithmic above a few, linear below."""
    return np.asarray(np.arcsinh(np.asarray(steps, dtype=np.float64)))


def draw_learning(axes: Axes, run: Result) -> None:
    """Draw when the sigmoid network leaves ln 10: a dot per seed."""
    never = run.config["steps"]
    for interval, tint in SLOWER.items():
        for mark, is_late in (("o", False), ("^", True)):
            picked = [r for r in named(run, "sigmoid", interval) if (r["left_plateau"] is None) is is_late]
            x = [start(r) + (r["seed"] - 1) * 0.5 for r in picked]
            y = [never if is_late else r["left_plateau"] for r in picked]
            if picked:  # an empty line would still ask the layout for room
                axes.plot(
                    x, y, mark, color=tint, markersize=3.6, markeredgewidth=0, label=f"G={interval}", clip_on=False
                )
    places = ((165, ""), (230, ""), (never, " (triangle: never)"))
    for (interval, tint), (height, more) in zip(SLOWER.items(), places, strict=True):
        axes.text(3, height, f"G = {interval}{more}", color=tint, fontsize=7, va="center")
    _style.power_ticks(axes.xaxis, range(0, 33, 8))
    plateau = run.config["plateau"]
    axes.set(xlabel="first loss scale", ylabel=f"step of loss < {plateau:g}", ylim=(0, never), xlim=(-1, 33))
    _style.label_panel(axes, "c", "Learning begins")


def draw_losses(axes: Axes, run: Result) -> None:
    """Draw the sigmoid network's loss from 2^0 and from elsewhere; seeds thin."""
    block, ends = run.config["block"], []
    shown = [(0, interval, tint) for interval, tint in reversed(SLOWER.items())]
    shown += [(k, run.config["interval"], tint) for k, tint in ((32, _style.BLACK), (16, _style.GREEN))]
    for k, interval, tint in shown:
        arm = run.one(task="sigmoid", init_log2=k, growth_interval=interval)
        loss = arm.numbers("block_loss")
        steps = (np.arange(loss.shape[1]) + 0.5) * block
        axes.plot(steps, loss.T, color=tint, linewidth=0.4, alpha=0.4)
        axes.plot(steps, loss.mean(axis=0), color=tint, label=arm.name)
        ends.append(float(loss[:, -1].mean()))
    names = [f"from {_style.power_of_two(k)}, G = {interval}" for k, interval, _ in shown]
    _style.name_ends(axes, ends, 0.06, names, [tint for _, _, tint in shown])
    _style.label_panel(axes, "d", "Sigmoid network: steps at a scale too low are lost")
    axes.set(xlabel="step", ylabel="training loss (nats)", xlim=(0, run.config["steps"]), ylim=(1.6, 2.4))
