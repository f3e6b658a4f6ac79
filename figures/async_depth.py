"""Training with an optimizer that runs k steps behind on its own thread. Late weights raise the
loss; a late loss scale alone hardly changes it.
"""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from figures import _style
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


def scale_alone(run: Result) -> ArmRecords:
    """Return the arm with a late scale and current weights."""
    return run.one(scale=run.config["control"], weights=0)


def color(arm: ArmRecords) -> str:
    """Return a color: darker for a larger depth, green if only the scale is late."""
    if arm.settings["scale"] != arm.settings["weights"]:
        return _style.GREEN
    return str(to_hex(mpl.colormaps["plasma"](0.8 - 0.19 * arm.settings["weights"])))


def draw_losses(axes: Axes, run: Result) -> None:
    """Draw each seed as a thin line, their median as a thick one; `latest` equals `depth` and is not drawn."""
    shown = run.where(latest=False)
    ends = []
    for arm in shown:
        loss = arm.loss_blocks(BLOCK)
        steps = (np.arange(loss.shape[1]) + 0.5) * BLOCK
        axes.plot(steps, loss.T, color=color(arm), linewidth=0.4, alpha=0.5)
        axes.plot(steps, np.median(loss, axis=0), color=color(arm), label=arm.name)
        ends.append(float(np.median(loss[:, -1])))
    alone = [
        "" if arm.settings["weights"] == arm.settings["scale"] else "scale alone, " for arm in shown
    ]
    names = [f"{text}k = {arm.settings['scale']}" for text, arm in zip(alone, shown, strict=True)]
    _style.name_ends(axes, ends, 0.13, names, map(color, shown))
    _style.label_panel(axes, "a", "Adam with late weights")
    axes.set(
        xlabel="step", ylabel="training loss (nats per byte)", ylim=(2.8, 4.6), xlim=(0, run.steps)
    )


def draw_ends(axes: Axes, run: Result) -> None:
    """Draw the final loss, a dot per seed and a bar at their mean."""
    depths, control = run.config["depths"], run.config["control"]
    for x, k in enumerate(depths):
        dots(axes, x, run.one(weights=k, latest=False, scale=k), "o")
    latest = run.one(weights=control, latest=True)
    for shift, arm, marker in ((0.3, latest, "+"), (-0.3, scale_alone(run), "D")):
        dots(axes, depths.index(control) + shift, arm, marker)
    y = scale_alone(run).mean("test_loss")
    x = depths.index(control)
    axes.text(
        x - 0.5, y - 0.06, "scale alone", color=_style.GREEN, fontsize=7, ha="center", va="top"
    )
    axes.text(
        x + 0.45,
        3.74,
        "+: longest\npossible delay",
        fontsize=7,
        ha="right",
        va="bottom",
        color=color(latest),
    )
    axes.set_xticks(range(len(depths)), [str(k) for k in depths])
    axes.set(xlabel="k (steps behind)", xlim=(-0.5, len(depths) - 0.4))
    axes.set(ylabel="test loss (nats per byte)", ylim=(2.9, 3.95))
    _style.label_panel(axes, "b", f"Final loss, {_style.seeds(run)}")


def dots(axes: Axes, x: float, arm: ArmRecords, marker: str) -> None:
    """Draw a dot per seed of one arm."""
    y, (size, edge) = arm.column("test_loss"), (5, 0.9) if marker == "+" else (3.4, 0)
    axes.plot(
        [x] * len(y),
        y,
        marker,
        color=color(arm),
        markersize=size,
        markeredgewidth=edge,
        label=arm.name,
    )
    if marker != "+":
        axes.plot([x - 0.2, x + 0.2], [float(np.mean(y))] * 2, color=color(arm), linewidth=1.6)


def draw_scales(axes: Axes, run: Result) -> None:
    """Draw one seed, a lane per depth; ticks are skipped steps. The last lane has both schedules."""
    steps = run.config["steps"]
    for lane, k in enumerate(run.config["depths"]):
        arm, base = run.one(weights=k, latest=False, scale=k), -LANE * lane
        bits = np.log2(arm.scales()[0]) - 16
        axes.axhline(base, color="#E0E0E0", linewidth=0.6, zorder=0)
        last = k == run.config["control"]
        axes.step(np.arange(steps), base + bits, where="post", color=color(arm), linewidth=2.6 if last else 1.1,
                  alpha=0.45 if last else 1.0, label=arm.name)  # fmt: skip
        skips = arm.first["found_inf"]
        axes.vlines(
            skips,
            base - 3.4,
            base - 2.4,
            color=_style.VERMILION,
            linewidth=1.0,
            label=f"{arm.name} skips",
        )
        _style.label_right(axes, base, base, f"k = {k}", color(arm))
        if last:
            latest = run.one(weights=k, latest=True)
            axes.step(np.arange(steps), base + np.log2(latest.scales()[0]) - 16, where="post", color=color(arm),
                      linewidth=0.7, label=latest.name)  # fmt: skip
    ticks = [(lane, shift) for lane in range(len(run.config["depths"])) for shift in (-2, 2)]
    axes.set_yticks(
        [s - LANE * lane for lane, s in ticks], [_style.power_of_two(16 + s) for _, s in ticks]
    )
    axes.set(xlabel="step", ylabel="loss scale", xlim=(0, steps))
    title = f"First seed: scales (lines) and skipped steps (ticks); both schedules for k = {k}"
    _style.label_panel(axes, "c", title)
