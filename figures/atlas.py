"""Which laws each framework's own scaler keeps; a deviation is a declared difference, and no bug.

Each was run as it is installed. The page [`atlas.html`](atlas.html) has the shortest history of each cell and a test.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from figures import _style, atlas_page
from figures.results import Result

DATA = ("atlas",)
LOOKS = {  # outcome -> colour, sign, word
    "passed": ("#DCE9F2", "", "keeps it"),
    "deviation": ("#F3E3A8", "~", "does otherwise, by choice"),
    "defect": ("#E8935A", "×", "breaks it"),
    "trouble": ("#B2182B", "!", "hangs or crashes"),
    "not applicable": ("#F4F4F4", "", "not asked"),
    "not run": ("#FFFFFF", "", "not run"),
}
BROKEN = ("defect", "trouble")
ROW = 0.135  # inches
SAME = "equals its dialect"


def plot(run: Result) -> Figure:
    laws, peers = atlas_page.parts(run)
    figure = _style.new_figure(_style.TWO_COLUMNS, 1.35 + ROW * (len(laws) + 1))
    axes = figure.subplots()
    axes.set_ylabel(
        " ", labelpad=8
    )  # the layout counts no rotated name above, and is short of room for a long one here
    for x, peer in enumerate(peers):
        for y, law in enumerate(laws):
            draw_cell(axes, x, y, peer["laws"].get(law, {"outcome": "not run"})["outcome"])
        draw_cell(axes, x, len(laws) + 0.4, outcome_of_drift(peer))
    draw_names(axes, [law.replace("_", " ") for law in laws], [peer["arm"] for peer in peers])
    seen = {found["outcome"] for peer in peers for found in peer["laws"].values()}
    seen |= {"not run"} if any(peer["not_run"] for peer in peers) else set()
    handles = [
        Patch(facecolor=color, edgecolor=_style.GREY, linewidth=0.4, label=f"{word} {sign}".strip())
        for outcome, (color, sign, word) in LOOKS.items()
        if outcome in seen
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1, columnspacing=1.2)
    return figure


def draw_cell(axes: Axes, x: float, y: float, outcome: str) -> None:
    """Draw what one law says of one peer."""
    color, sign, _ = LOOKS[outcome]
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, color=color, linewidth=0))
    axes.text(x, y, sign, ha="center", va="center_baseline", fontsize=6)


def draw_names(axes: Axes, laws: list[str], peers: list[str]) -> None:
    """Name the rows and the columns."""
    axes.set(xlim=(-0.5, len(peers) - 0.5), ylim=(len(laws) + 0.9, -0.5))
    axes.xaxis.set_ticks_position("top")
    axes.set_xticks(range(len(peers)), peers, rotation=60, ha="left", fontsize=6, rotation_mode="anchor")
    axes.set_yticks([*range(len(laws)), len(laws) + 0.4], [*laws, SAME], fontsize=6)
    axes.tick_params(length=0, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)


def outcome_of_drift(peer: Mapping[str, Any]) -> str:
    """Return the outcome of the comparison with a dialect, as that of a law."""
    if not peer["version"]:
        return "not run"
    if not peer["drift"]:
        return "not applicable"
    return "defect" if peer["drift"]["differing"] else "passed"


def markdown(run: Result) -> str:
    """Return the table of the gallery: a row per peer."""
    laws, peers = atlas_page.parts(run)
    lines = [f"{len(laws)} laws, {sum(bool(peer['version']) for peer in peers)} peers run.\n"]
    lines += ["| peer | version | run on | keeps | by choice | breaks | its dialect |", "|---|---|---|--:|--:|---|---|"]
    for peer in peers:
        counts = Counter(found["outcome"] for found in peer["laws"].values())
        broken = [name.replace("_", " ") for name, found in peer["laws"].items() if found["outcome"] in BROKEN]
        words = [f"[{peer['arm']}]({peer['source']})", peer["version"] or "not run", peer["date"] or ""]
        words += [str(counts["passed"]), str(counts["deviation"]), "; ".join(broken), drift_in_words(peer)]
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join([*lines, ""])


def drift_in_words(peer: Mapping[str, Any]) -> str:
    """Return how many random histories equal the dialect's."""
    if not (drift := peer["drift"]):
        return "none to compare with" if peer["version"] else ""
    ran = drift["histories"] - drift["refused"]
    return f"{ran - drift['differing']:,} of {ran:,} histories equal"


def page(run: Result) -> str:
    """Return atlas.html."""
    return atlas_page.page(run)
