"""A transformer whose optimizer runs k steps behind on its own thread: late weights cost, a late scale does not."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsim.records import Record
from figures import _style, results
from figures.results import ArmRecords, Result

DATA = ("async_depth",)
BLOCK = 10  # steps in one point of a loss curve
LANE = 8.5  # bits between two lanes of scales


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 4.8)
    axes = figure.subplot_mosaic([["a", "a", "b"], ["c", "c", "c"]], height_ratios=(1.15, 1))
    draw_losses(axes["a"], run)
    draw_ends(axes["b"], run)
    draw_scales(axes["c"], run)
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


def draw_losses(axes: Axes, run: Result) -> None:
    """Each seed a thin line, their median a thick one; `latest` is left out, it is `depth` again."""
    shown = [arm for arm in run.arms if not arm.endswith("latest")]
    ends = []
    for arm in shown:
        loss = run.arm(arm).loss_blocks(BLOCK)
        steps = (np.arange(loss.shape[1]) + 0.5) * BLOCK
        axes.plot(steps, loss.T, color=color(arm), linewidth=0.4, alpha=0.5)
        axes.plot(steps, np.median(loss, axis=0), color=color(arm), label=arm)
        ends.append(float(np.median(loss[:, -1])))
    for arm, end, place in zip(shown, ends, _style.spread(ends, 0.13), strict=True):
        _style.label_right(axes, end, place, named(arm), color(arm))
    _style.label_panel(axes, "a", "Adam with late weights")
    axes.set(xlabel="step", ylabel="training loss (nats a byte)", ylim=(2.8, 4.6), xlim=(0, run.steps))


def draw_ends(axes: Axes, run: Result) -> None:
    """The final loss, a dot a seed and a bar at their mean."""
    depths = run.config["depths"]
    for x, k in enumerate(depths):
        dots(axes, x, run.arm(f"depth {k}"), "o")
    control = run.config["control"]
    for shift, arm, marker in ((0.3, f"depth {control} latest", "+"), (-0.3, f"scale {control}", "D")):
        dots(axes, depths.index(control) + shift, run.arm(arm), marker)
    y = float(np.mean([r["test_loss"] for r in run.arm(f"scale {control}")]))
    axes.text(
        depths.index(control) - 0.5, y - 0.06, "scale alone", color=_style.GREEN, fontsize=7, ha="center", va="top"
    )
    axes.text(depths.index(control) + 0.45, 3.74, "+: as late as\nit can be", fontsize=7, ha="right", va="bottom",
              color=color(f"depth {control}"))  # fmt: skip
    axes.set_xticks(range(len(depths)), [str(k) for k in depths])
    axes.set(xlabel="k, steps behind", ylabel="test loss (nats a byte)", ylim=(2.9, 3.95),
             xlim=(-0.5, len(depths) - 0.4))  # fmt: skip
    _style.label_panel(axes, "b", "Final loss, 3 seeds")


def dots(axes: Axes, x: float, units: ArmRecords, marker: str) -> None:
    """One arm."""
    arm, y = units.first["arm"], [r["test_loss"] for r in units]
    edge = {"markeredgewidth": 0.9} if marker == "+" else {"markeredgewidth": 0}
    axes.plot([x] * len(y), y, marker, color=color(arm), markersize=5 if marker == "+" else 3.4, label=arm, **edge)
    if marker != "+":
        axes.plot([x - 0.2, x + 0.2], [float(np.mean(y))] * 2, color=color(arm), linewidth=1.6)


def log2_scale(record: Record) -> NDArray[np.float64]:
    """log2 of the scale in force, (steps,)."""
    return np.asarray(np.log2(results.in_force(record["scale_changes"], len(record["loss"]))))


def draw_scales(axes: Axes, run: Result) -> None:
    """One seed, a lane a depth; ticks are skipped steps. On the last lane both schedules, the latest on top."""
    steps = run.config["steps"]
    for lane, k in enumerate(run.config["depths"]):
        arm, base = f"depth {k}", -LANE * lane
        record = run.arm(arm).first
        bits = log2_scale(record) - 16
        axes.axhline(base, color="#E0E0E0", linewidth=0.6, zorder=0)
        last = k == run.config["control"]
        axes.step(np.arange(steps), base + bits, where="post", color=color(arm), linewidth=2.6 if last else 1.1,
                  alpha=0.45 if last else 1.0, label=arm)  # fmt: skip
        axes.vlines(
            record["found_inf"], base - 3.4, base - 2.4, color=_style.VERMILION, linewidth=1.0, label=f"{arm} skips"
        )
        _style.label_right(axes, base, base, f"k = {k}", color(arm))
        if last:
            latest = run.arm(f"{arm} latest").first
            axes.step(np.arange(steps), base + log2_scale(latest) - 16, where="post", color=color(arm), linewidth=0.7,
                      label=f"{arm} latest")  # fmt: skip
    places = [shift - LANE * lane for lane in range(len(run.config["depths"])) for shift in (-2, 2)]
    axes.set_yticks(places, [_style.power_of_two(16 + s) for _ in run.config["depths"] for s in (-2, 2)])
    axes.set(xlabel="step", ylabel="loss scale", xlim=(0, steps))
    _style.label_panel(
        axes, "c", "One seed: scales (lines) and skipped steps (ticks); two schedules of k = 4 on one another"
    )
