"""Conformance results of loss scalers. A difference that the package documents counts as xfailed,
except at the ends of the float32 range.

The same rules apply to ampsim's scalers. The last rows are the checks at the ends of float32; there
a documented difference counts as failed. The name of each check ends with its source: the
documentation of torch, the package's own, or ampsim. Scalers with equal results share a column.

Each scaler ran as installed. `make frameworks` runs the live scalers again. The results of the
other scalers are recorded with their version and date. [`conformance.html`](conformance.html) has
the minimal overflow sequence of each cell.
"""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from figures import _style, conformance_page
from figures import derived_numbers as q
from figures.results import Result

DATA = ("conformance",)
LOOKS = {  # outcome -> colour, sign, word
    "passed": ("#B9D3E6", "", "passed"),
    "xfailed": ("#F3E3A8", "~", "xfailed: documented difference"),
    "failed": ("#E8935A", "×", "failed"),
    "skipped": ("#FFFFFF", "–", "skipped"),
    "not run": ("#FFFFFF", "", "not run"),
}
ROW = 0.132  # inches
GAP = 0.6  # of a row or column, between groups
SAME = "equals its dialect"
OURS = "ampsim"
CHOSEN = ("passed", "xfailed")


def plot(run: Result) -> Figure:
    names, adapters = conformance_page.parts(run)
    ends, promises = q.ends(run), run.arm("checks").first["promises"]
    columns = alike([*names], adapters)
    kept = kept_by_all([*names], adapters)
    checks = [
        check for check in sorted(names, key=lambda check: check in ends) if check not in kept
    ]
    figure = _style.new_figure(_style.TWO_COLUMNS, 2.1 + ROW * (len(checks) + 1))
    axes = figure.subplots()
    axes.set_ylabel(
        " ", labelpad=8
    )  # the layout ignores rotated names above the axes; this leaves space for a long one
    rows = [y + GAP * (check in ends) for y, check in enumerate(checks)]
    places = [x + GAP * column[0]["arm"].startswith(OURS) for x, column in enumerate(columns)]
    for x, column in zip(places, columns, strict=True):
        for y, outcome in zip(
            [*rows, rows[-1] + 1 + GAP], outcomes(checks, column[0]), strict=True
        ):
            draw_cell(axes, x, y, outcome)
    titles = [
        "\n".join(textwrap.wrap(", ".join(title(adapter) for adapter in column), 44))
        for column in columns
    ]
    draw_names(
        axes,
        [f"{check.replace('_', ' ')} ({promised(promises[check])})" for check in checks],
        titles,
        rows,
        places,
    )
    seen = {outcome for column in columns for outcome in outcomes(checks, column[0])[:-1]}
    handles = [
        Patch(facecolor=color, edgecolor=_style.GREY, linewidth=0.4, label=f"{word} {sign}".strip())
        for outcome, (color, sign, word) in LOOKS.items()
        if outcome in seen
    ]
    note = f"Passed wherever they ran, not shown: {', '.join(kept).replace('_', ' ')}."
    figure.text(
        0.003, 1 - 0.72 / figure.get_figheight(), textwrap.fill(note, 38), va="top", fontsize=7
    )
    axes.legend(  # left of the columns' names
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 1),
        bbox_transform=figure.transFigure,
        handlelength=1,
        borderpad=0.2,
    ).set_in_layout(False)
    return figure


def kept_by_all(checks: Sequence[str], adapters: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the checks with no failed and no xfailed outcome."""
    found = {
        check: {outcome for adapter in adapters for outcome in outcomes([check], adapter)[:1]}
        for check in checks
    }
    return [check for check, seen in found.items() if seen <= {"passed", "skipped", "not run"}]


def outcomes(checks: Sequence[str], adapter: Mapping[str, Any]) -> list[str]:
    """Return the outcome of each check, then of the comparison with the dialect."""
    return [
        *(adapter["checks"].get(check, {"outcome": "not run"})["outcome"] for check in checks),
        outcome_of_drift(adapter),
    ]


def title(adapter: Mapping[str, Any]) -> str:
    """Return the name of a scaler, with a star if parts of its package were replaced."""
    return str(adapter["arm"]) + "*" * bool(adapter["patched"])


def promised(promise: str) -> str:
    """Return who specifies what a check tests, in one word."""
    return {"torch": "torch", "the package": "package"}.get(promise.partition(":")[0], "ampsim")


def alike(
    checks: Sequence[str], adapters: Sequence[Mapping[str, Any]]
) -> list[list[Mapping[str, Any]]]:
    """Group adapters by equal outcomes: most failed checks first, ampsim last."""
    groups: dict[tuple[bool, *tuple[str, ...]], list[Mapping[str, Any]]] = {}
    for adapter in adapters:
        groups.setdefault((adapter["arm"].startswith(OURS), *outcomes(checks, adapter)), []).append(
            adapter
        )
    return sorted(
        groups.values(),
        key=lambda group: (group[0]["arm"].startswith(OURS), -len(q.failed_checks(group[0]))),
    )


def draw_cell(axes: Axes, x: float, y: float, outcome: str) -> None:
    """Draw the outcome of one check of one adapter."""
    color, sign, _ = LOOKS[outcome]
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, color=color, linewidth=0))
    axes.text(x, y, sign, ha="center", va="center_baseline", fontsize=7)


def draw_names(
    axes: Axes,
    checks: Sequence[str],
    adapters: Sequence[str],
    rows: Sequence[float],
    places: Sequence[float],
) -> None:
    """Name the rows and the columns."""
    axes.set(xlim=(-0.5, places[-1] + 0.5), ylim=(rows[-1] + 1.5 + GAP, -0.5))
    axes.xaxis.set_ticks_position("top")
    axes.set_xticks(
        places, adapters, rotation=90, ha="center", va="bottom", fontsize=7, linespacing=0.9
    )
    axes.set_yticks([*rows, rows[-1] + 1 + GAP], [*checks, SAME], fontsize=7)
    axes.tick_params(length=0, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)


def outcome_of_drift(adapter: Mapping[str, Any]) -> str:
    """Return the outcome of the comparison with a dialect, as that of a check."""
    if not adapter["drift"]:
        return "skipped"
    return "failed" if adapter["drift"]["differing"] else "passed"


def markdown(run: Result) -> str:
    """Return the table of the gallery: a row per adapter."""
    checks, adapters = conformance_page.parts(run)
    classes, ends = {adapter["class"] for adapter in adapters}, q.ends(run)
    live = sum(adapter["live"] for adapter in adapters)
    lines = [
        f"{len(checks)} checks on {len(classes)} scaler classes ({len(adapters)} configurations, "
        f"{live} of them live).\n",
        "| scaler | version | run | passed | xfailed | failed | equal to its dialect |",
        "|---|---|---|--:|--:|---|---|",
    ]
    for adapter in adapters:
        counts = Counter(found["outcome"] for found in adapter["checks"].values())
        broken = [
            name.replace("_", " ")
            for name, found in adapter["checks"].items()
            if found["outcome"] in q.BROKEN
        ]
        words = [f"[{adapter['arm']}]({adapter['source']})", adapter["version"], judged(adapter)]
        words += [
            str(counts["passed"]),
            str(counts["xfailed"]),
            "; ".join(broken),
            drift_in_words(adapter),
        ]
        lines.append(f"| {' | '.join(words)} |")
    lines += [
        "",
        "| check | source | classes that fail |",
        "|---|---|--:|",
    ]
    for check, promise in run.arm("checks").first["promises"].items():
        asked = [
            adapter
            for adapter in adapters
            if adapter["checks"].get(check, {}).get("outcome") in (*q.BROKEN, *CHOSEN)
        ]
        breaks = {adapter["class"] for adapter in asked if check in q.failed_checks(adapter)}
        where = " (ends of float32)" * (check in ends)
        lines.append(
            f"| {check.replace('_', ' ')}{where} | {promise.replace('ours', 'ampsim')} | "
            f"{len(breaks)} of {len({p['class'] for p in asked})} |"
        )
    return "\n".join([*lines, ""])


def judged(adapter: Mapping[str, Any]) -> str:
    """Return whether a scaler was run live, and when."""
    return f"{'live' if adapter['live'] else 'recorded'}, {adapter['date']}"


def drift_in_words(adapter: Mapping[str, Any]) -> str:
    """Return how many random overflow sequences give the scales of the dialect."""
    if not (drift := adapter["drift"]):
        return "no dialect"
    ran = drift["histories"] - drift["refused"]
    return f"{ran - drift['differing']:,} of {ran:,} sequences"


def page(run: Result) -> str:
    """Return conformance.html."""
    return conformance_page.page(run)
