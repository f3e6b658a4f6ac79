"""What a wrong initial loss scale costs: a step a bit above the ceiling, G steps a bit below it."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsim.records import Record
from figures import _style
from figures.results import Result

DATA = ("init_scale",)
NETWORK = {"sigmoid": _style.BLUE, "residual": _style.ORANGE}
SLOWER = {"G=20": _style.BLUE, "G=50": _style.PURPLE, "G=200": _style.VERMILION}  # from 2^0
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
    """log2 of the first scale."""
    return int(np.log2(record["scale_changes"][0][1]))


def named(run: Result, task: str, interval: int) -> list[Record]:
    """The units of one network and one growth interval."""
    return [r for r in run.records if r["arm"].startswith(f"{task} ") and r["arm"].endswith(f" G={interval}")]


def log2_scale(record: Record, steps: int) -> NDArray[np.float64]:
    """log2 of the scale in force, (steps,)."""
    starts, scales = np.array(record["scale_changes"]).T
    return np.repeat(np.log2(scales), np.diff([*starts.astype(int), steps]))


def color(k: int) -> tuple[float, ...]:
    """Of a start at 2^k: cold to hot."""
    return tuple(mpl.colormaps["plasma"](0.02 + 0.86 * k / 32))


def draw_scales(axes: Axes, run: Result) -> None:
    """Every start of the sigmoid network; the first seed thick."""
    steps, interval = run.config["steps"], run.config["interval"]
    shown = named(run, "sigmoid", interval)
    sought = np.arange(0, steps, run.config["seek_every"])
    for record in shown:
        axes.plot(sought, record["ceilings"], ".", color="#BBBBBB", markersize=3.5, markeredgewidth=0, zorder=0)
    for record in shown[::-1]:
        k, first = start(record), record["seed"] == run.config["seeds"][0]
        axes.step(
            np.arange(steps), log2_scale(record, steps), where="post", color=color(k), linewidth=1.3 if first else 0.5,
            alpha=1.0 if first else 0.5, label=f"2^{k}, seed {record['seed']}",
        )  # fmt: skip
    axes.annotate("a step a bit", (14, 26.5), (50, 28.2), fontsize=7, va="center",
                  arrowprops={"arrowstyle": "-", "linewidth": 0.6})  # fmt: skip
    axes.text(230, 7.4, f"{interval} steps a bit", fontsize=7)
    axes.text(395, 21.7, "dots: the ceiling", fontsize=7, color=_style.GREY, ha="right")
    ticks = range(0, 33, 4)
    axes.set_yticks(ticks, [_style.power_of_two(k) for k in ticks])
    axes.set(xlabel="step", ylabel="loss scale", xlim=(-4, steps), ylim=(-0.8, 33))
    _style.label_panel(axes, "a", "Nine starts, one ceiling")


def draw_costs(axes: Axes, run: Result) -> None:
    """Steps until the scale has arrived, measured and from the first batch's ceiling."""
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
    axes.text(16.5, squashed([330])[0], "sigmoid", fontsize=7, color=NETWORK["sigmoid"])
    axes.text(16.5, squashed([200])[0], "residual", fontsize=7, color=NETWORK["residual"])
    axes.text(16.5, squashed([120])[0], "lines: closed form", fontsize=7, color=_style.GREY)
    axes.set_yticks(squashed(HEIGHTS), [str(n) for n in HEIGHTS])
    ticks = range(0, 33, 8)
    axes.set_xticks(ticks, [_style.power_of_two(k) for k in ticks])
    axes.set(xlabel="first loss scale", ylabel="steps", ylim=(-0.15, squashed([560])[0]), xlim=(-1, 33.5))
    _style.label_panel(axes, "b", "Until it has arrived")


def squashed(steps: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithmic above a few steps, linear below."""
    return np.asarray(np.arcsinh(np.asarray(steps, dtype=np.float64)))


def draw_learning(axes: Axes, run: Result) -> None:
    """When the sigmoid network leaves ln 10: a dot a seed."""
    never = run.config["steps"]
    for name, tint in SLOWER.items():
        units = named(run, "sigmoid", int(name.removeprefix("G=")))
        x = [start(r) + (r["seed"] - 1) * 0.5 for r in units]
        y = [never if r["left_plateau"] is None else r["left_plateau"] for r in units]
        late = [r["left_plateau"] is None for r in units]
        for mark, chosen in (("o", False), ("^", True)):
            picked = [i for i, flag in enumerate(late) if flag is chosen]
            if not picked:
                continue  # an empty line would still ask the layout for room
            axes.plot(
                [x[i] for i in picked], [y[i] for i in picked], mark, color=tint, markersize=3.6, markeredgewidth=0,
                label=name, clip_on=False,
            )  # fmt: skip
    axes.text(3, never, "G = 200 (triangle: never)", color=SLOWER["G=200"], fontsize=7, va="center")
    axes.text(3, 230, "G = 50", color=SLOWER["G=50"], fontsize=7, va="center")
    axes.text(3, 165, "G = 20", color=SLOWER["G=20"], fontsize=7, va="center")
    ticks = range(0, 33, 8)
    axes.set_xticks(ticks, [_style.power_of_two(k) for k in ticks])
    plateau = run.config["plateau"]
    axes.set(xlabel="first loss scale", ylabel=f"step of loss < {plateau:g}", ylim=(0, never), xlim=(-1, 33))
    _style.label_panel(axes, "c", "Learning begins")


def draw_losses(axes: Axes, run: Result) -> None:
    """The sigmoid network's loss from 2^0 and from elsewhere; seeds thin."""
    block, ends = run.config["block"], []
    shown = {
        "sigmoid 2^0 G=200": ("from $2^0$, G = 200", SLOWER["G=200"]),
        "sigmoid 2^0 G=50": ("from $2^0$, G = 50", SLOWER["G=50"]),
        "sigmoid 2^0 G=20": ("from $2^0$, G = 20", SLOWER["G=20"]),
        "sigmoid 2^32 G=20": ("from $2^{32}$, G = 20", _style.BLACK),
        "sigmoid 2^16 G=20": ("from $2^{16}$, G = 20", _style.GREEN),
    }
    for arm, (_, tint) in shown.items():
        loss = np.array([r["block_loss"] for r in run.arm(arm)])
        steps = (np.arange(loss.shape[1]) + 0.5) * block
        axes.plot(steps, loss.T, color=tint, linewidth=0.4, alpha=0.4)
        axes.plot(steps, loss.mean(axis=0), color=tint, label=arm)
        ends.append(float(loss[:, -1].mean()))
    for (label, tint), end, place in zip(shown.values(), ends, _style.spread(ends, 0.06), strict=True):
        _style.label_right(axes, end, place, label, tint)
    _style.label_panel(axes, "d", "Sigmoid network: steps at a scale too low are lost")
    axes.set(xlabel="step", ylabel="training loss (nats)", xlim=(0, run.config["steps"]), ylim=(1.6, 2.4))
