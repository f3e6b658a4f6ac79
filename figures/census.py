"""Public fp16 training loops: share of loops that fail each check, as far as the source shows.

a: share of all loops, by kind of repository. b: share of the loops that have a feature. Bars are
Wilson intervals. They treat loops as independent, but loops of one repository are not.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import _style
from figures import derived_numbers as q
from figures.results import Result

DATA = ("census",)
COLOR = {"package": _style.BLUE, "script": _style.VERMILION, "example": _style.GREY}
CHECKS = (
    "skipped_step_changes_nothing",
    "resume_is_exact",
    "gradients_do_not_depend_on_loss_scale",
    "micro_batches_equal_one_batch",
)
OF = {
    "schedule": "schedule advances\nin a skipped step",
    "average": "average updated\nin a skipped step",
    "checkpoint": "checkpoint without\nthe scaler",
    "clip": "clipped while scaled",
}


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.4)
    a, b = figure.subplots(1, 2, width_ratios=(1.3, 1))
    kinds = [kind for kind in COLOR if kind in run.arms]
    for shift, kind in enumerate(kinds):
        row = run.arm(kind).first
        counts = [row["wrong"]["loops"], *(row["checks"][check]["loops"] for check in CHECKS)]
        draw_shares(
            a,
            [(found, row["loops"]) for found in counts],
            COLOR[kind],
            0.22 * (shift - 1),
            f"{kind} ({row['loops']})",
        )
    a.set_yticks(range(5), ["any check", *(check.replace("_", " ") for check in CHECKS)])
    a.legend(loc="lower right")
    draw_shares(b, [q.census(run, "of", name) for name in OF], _style.BLACK)
    b.set_yticks(
        range(len(OF)), [f"{label} ({q.census(run, 'of', name)[1]})" for name, label in OF.items()]
    )
    _style.label_panel(a, "a", "Of all loops")
    _style.label_panel(b, "b", "Of applicable loops")
    return figure


def draw_shares(
    axes: Axes,
    counts: Sequence[tuple[int, int]],
    color: str,
    shift: float = 0.0,
    label: str | None = None,
) -> None:
    """Draw a dot per share of loops, and its interval."""
    places = [place + shift for place in range(len(counts))]
    bounds = [q.wilson(*count) for count in counts]
    axes.hlines(
        places, [low for low, _ in bounds], [high for _, high in bounds], color=color, linewidth=1.5
    )
    shares = [found / asked for found, asked in counts]
    axes.plot(shares, places, "o", color=color, markersize=3.5, label=label, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(len(counts) - 0.5, -0.5), xlabel="share of loops")
