"""Of the checks for any loss scaler, `ampsim.torch.GradScaler` alone fails none.

One of them is skipped for it. In the whole suite of `ampsim check` it fails two checks:
`no_nonfinite_step_after_unscale` and `state_dict_is_atomic`.

A row is a scaler, and a column is what a failed check does to training; a number counts the failed
checks. A documented difference at the ends of float32 counts as failed, and so does a Python float
without a bound, which leaves the range of float32. A star: parts of the package were replaced by
stubs.

Each scaler ran as installed. `make frameworks` runs the live scalers again. The results of the
other scalers are recorded with their version and date. [`conformance.html`](conformance.html) has
the outcome and the minimal overflow sequence of each check.
"""

from collections.abc import Collection, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import _style, conformance_page
from figures import derived_numbers as q
from figures.results import Result

DATA = ("conformance",)
ALT = "A table of colored cells with one row per loss scaler and one column per kind of failure"
NEEDS = {"conformance": ("checks",)}
PASSED, INTENDED, FAILED, NOT_RUN = "#B9D3E6", "#F3E3A8", "#E8935A", "#FFFFFF"
LEGEND = {
    PASSED: "passed",
    INTENDED: "~ documented",
    FAILED: "failed",
    NOT_RUN: "\N{EN DASH} not run",
}
GRADIENTS = {
    "get_scale_matches_scale",
    "no_step_on_nonfinite_gradients",
    "unscale_uses_scale_of_loss",
}
RESUME = {"state_dict_continues_run"}
ARGUMENTS = {"invalid_arguments_raise", "neutral_factors_raise"}
ROW = 0.132  # inches
GAP = 0.6  # of a row, above ampsim's scalers
OURS = "ampsim"


def plot(run: Result) -> Figure:
    columns = severities(run)
    _, adapters = conformance_page.parts(run)
    rows = sorted(adapters, key=lambda adapter: rank(adapter, columns.values()))
    figure = _style.new_figure(_style.ONE_COLUMN, 1.6 + ROW * len(rows))
    axes = figure.subplots()
    heights = [
        y + GAP * adapter["arm"].startswith(OURS) for y, adapter in enumerate(rows)
    ]
    for y, adapter in zip(heights, rows, strict=True):
        for x, checks in enumerate(columns.values()):
            draw_cell(axes, x, y, *cell(adapter, checks))
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(heights[-1] + 0.5, -0.5))
    axes.xaxis.set_ticks_position("top")
    axes.set_xticks(range(len(columns)), list(columns), rotation=90)
    axes.set_yticks(heights, [title(adapter) for adapter in rows])
    axes.tick_params(length=0, pad=1)
    axes.spines[:].set_visible(False)
    keys = [
        Rectangle((0, 0), 1, 1, color=color, label=text)
        for color, text in LEGEND.items()
    ]
    figure.legend(handles=keys, loc="outside lower left", ncols=2)
    return figure


def severities(run: Result) -> dict[str, set[str]]:
    """Return the checks by what fails with them, the worst first."""
    ends = q.ends(run)
    named = GRADIENTS | RESUME | ARGUMENTS | ends
    return {
        "wrong gradients": GRADIENTS,
        "wrong after resume": RESUME,
        "other scale or count": set(run.arm("checks").first["sentences"]) - named,
        "arguments not checked": ARGUMENTS,
        "ends of float32": ends,
    }


def rank(
    adapter: Mapping[str, Any], columns: Collection[Collection[str]]
) -> tuple[Any, ...]:
    """Return the key of the order of rows: most failed checks first, by severity; ampsim last."""
    failed = q.failed_checks(adapter)
    counts = [-len(failed & set(checks)) for checks in columns]
    return (adapter["arm"].startswith(OURS), *counts, adapter["arm"])


def cell(adapter: Mapping[str, Any], checks: Collection[str]) -> tuple[str, str]:
    """Return the color and the text of a scaler's outcomes in some checks."""
    found = [adapter["checks"].get(check, {}).get("outcome") for check in checks]
    if failed := sum(outcome in q.BROKEN for outcome in found):
        return FAILED, str(failed)
    if intended := found.count("xfailed"):
        return INTENDED, f"{intended} ~"
    return (PASSED, "") if "passed" in found else (NOT_RUN, "\N{EN DASH}")


def title(adapter: Mapping[str, Any]) -> str:
    """Return the name of a scaler, with a star if parts of its package were replaced."""
    return str(adapter["arm"]) + "*" * bool(adapter["patched"])


def draw_cell(axes: Axes, x: float, y: float, color: str, text: str) -> None:
    """Draw what a scaler fails of one severity."""
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, color=color, linewidth=0))
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=7)


def page(run: Result) -> str:
    """Return conformance.html."""
    return conformance_page.page(run)
