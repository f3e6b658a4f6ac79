"""A transformer whose optimizer runs k steps behind on its own thread: late weights cost, a late scale does not."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsim.records import Record
from figures import _style, results

DATA = ("async_depth",)
BLOCK = 10  # steps in one point of a loss curve
LANE = 8.5  # bits between two lanes of scales


def plot(data: _style.Data) -> Figure:
    provenance, records = data[DATA[0]]
    config = provenance["config"]
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.8)
    axes = figure.subplot_mosaic([["a", "a", "b"], ["c", "c", "c"]], height_ratios=(1.15, 1))
    draw_losses(axes["a"], records)
    draw_ends(axes["b"], records, config)
    draw_scales(axes["c"], records, config)
    return figure


def named(arm: str) -> str:
    """For the reader."""
    kind, k, *latest = arm.split(" ")
    if kind == "scale":
        return f"scale alone, k = {k}"
    return f"k = {k}, latest" if latest else f"k = {k}"


def color(arm: str) -> str:
    """Darker with depth."""
    if arm.startswith("scale"):
        return _style.GREEN
    return str(to_hex(mpl.colormaps["plasma"](0.8 - 0.19 * int(arm.split(" ")[1]))))


def draw_losses(axes: Axes, records: Sequence[Record]) -> None:
    """Each seed a thin line, their median a thick one; `latest` is left out, it is `depth` again."""
    shown = [arm for arm in results.arms(records) if not arm.endswith("latest")]
    ends = []
    for arm in shown:
        loss = results.losses(results.of_arm(records, arm), BLOCK)
        steps = (np.arange(loss.shape[1]) + 0.5) * BLOCK
        axes.plot(steps, loss.T, color=color(arm), linewidth=0.4, alpha=0.5)
        axes.plot(steps, np.median(loss, axis=0), color=color(arm), label=arm)
        ends.append(float(np.median(loss[:, -1])))
    for arm, end, place in zip(shown, ends, results.spread(ends, 0.13), strict=True):
        _style.label_right(axes, end, place, named(arm), color(arm))
    _style.label_panel(axes, "a", "Adam with late weights")
    axes.set(xlabel="step", ylabel="training loss (nats a byte)", ylim=(2.8, 4.6), xlim=(0, len(records[0]["loss"])))


def draw_ends(axes: Axes, records: Sequence[Record], config: Record) -> None:
    """The final loss, a dot a seed and a bar at their mean."""
    depths = config["depths"]
    for x, k in enumerate(depths):
        dots(axes, x, results.of_arm(records, f"depth {k}"), "o")
    control = config["control"]
    for shift, arm, marker in ((0.3, f"depth {control} latest", "+"), (-0.3, f"scale {control}", "D")):
        dots(axes, depths.index(control) + shift, results.of_arm(records, arm), marker)
    y = float(np.mean([r["test_loss"] for r in results.of_arm(records, f"scale {control}")]))
    axes.text(
        depths.index(control) - 0.5, y - 0.06, "scale alone", color=_style.GREEN, fontsize=7, ha="center", va="top"
    )
    axes.text(depths.index(control) + 0.45, 3.74, "+: as late as\nit can be", fontsize=7, ha="right", va="bottom",
              color=color(f"depth {control}"))  # fmt: skip
    axes.set_xticks(range(len(depths)), [str(k) for k in depths])
    axes.set(xlabel="k, steps behind", ylabel="test loss (nats a byte)", ylim=(2.9, 3.95),
             xlim=(-0.5, len(depths) - 0.4))  # fmt: skip
    _style.label_panel(axes, "b", "Final loss, 3 seeds")


def dots(axes: Axes, x: float, units: Sequence[Record], marker: str) -> None:
    """One arm."""
    arm, y = units[0]["arm"], [r["test_loss"] for r in units]
    edge = {"markeredgewidth": 0.9} if marker == "+" else {"markeredgewidth": 0}
    axes.plot([x] * len(y), y, marker, color=color(arm), markersize=5 if marker == "+" else 3.4, label=arm, **edge)
    if marker != "+":
        axes.plot([x - 0.2, x + 0.2], [float(np.mean(y))] * 2, color=color(arm), linewidth=1.6)


def log2_scale(record: Record) -> NDArray[np.float64]:
    """log2 of the scale in force, (steps,)."""
    return np.asarray(np.log2(results.scale(record)))


def draw_scales(axes: Axes, records: Sequence[Record], config: Record) -> None:
    """One seed, a lane a depth; ticks are skipped steps. On the last lane both schedules, the latest on top."""
    steps = config["steps"]
    for lane, k in enumerate(config["depths"]):
        arm, base = f"depth {k}", -LANE * lane
        record = results.of_arm(records, arm)[0]
        bits = log2_scale(record) - 16
        axes.axhline(base, color="#E0E0E0", linewidth=0.6, zorder=0)
        last = k == config["control"]
        axes.step(np.arange(steps), base + bits, where="post", color=color(arm), linewidth=2.6 if last else 1.1,
                  alpha=0.45 if last else 1.0, label=arm)  # fmt: skip
        axes.vlines(
            record["found_inf"], base - 3.4, base - 2.4, color=_style.VERMILION, linewidth=1.0, label=f"{arm} skips"
        )
        _style.label_right(axes, base, base, f"k = {k}", color(arm))
        if last:
            latest = results.of_arm(records, f"{arm} latest")[0]
            axes.step(np.arange(steps), base + log2_scale(latest) - 16, where="post", color=color(arm), linewidth=0.7,
                      label=f"{arm} latest")  # fmt: skip
    places = [shift - LANE * lane for lane in range(len(config["depths"])) for shift in (-2, 2)]
    axes.set_yticks(places, [_style.power_of_two(16 + s) for _ in config["depths"] for s in (-2, 2)])
    axes.set(xlabel="step", ylabel="loss scale", xlim=(0, steps))
    _style.label_panel(
        axes, "c", "One seed: scales (lines) and skipped steps (ticks); two schedules of k = 4 on one another"
    )
