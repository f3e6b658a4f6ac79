"""Which laws each framework's own scaler keeps; a deviation is a declared difference, and no bug.

At the ends of float32 what is documented counts as broken, ours too. Scalers that come out alike share a column.

Each was run as it is installed. The page [`atlas.html`](atlas.html) has the shortest history of each cell and a test.
"""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from figures import _style, atlas_page
from figures import quantities as q
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
ROW = 0.135  # inches
GAP = 0.6  # of a row or column, between groups
SAME = "equals its dialect"
OURS = "ampsim"


def plot(run: Result) -> Figure:
    names, peers = atlas_page.parts(run)
    laws = [law for law in names if law not in q.ENDS] + [law for law in names if law in q.ENDS]
    columns = alike(laws, peers)
    figure = _style.new_figure(_style.TWO_COLUMNS, 1.75 + ROW * (len(laws) + 1))
    axes = figure.subplots()
    axes.set_ylabel(
        " ", labelpad=8
    )  # the layout counts no rotated name above, and is short of room for a long one here
    rows = [y + GAP * (law in q.ENDS) for y, law in enumerate(laws)]
    places = [x + GAP * column[0]["arm"].startswith(OURS) for x, column in enumerate(columns)]
    for x, column in zip(places, columns, strict=True):
        for y, outcome in zip([*rows, rows[-1] + 1 + GAP], outcomes(laws, column[0]), strict=True):
            draw_cell(axes, x, y, outcome)
    titles = ["\n".join(textwrap.wrap(", ".join(peer["arm"] for peer in column), 40)) for column in columns]
    draw_names(axes, [law.replace("_", " ") for law in laws], titles, rows, places)
    seen = {outcome for column in columns for outcome in outcomes(laws, column[0])[:-1]}
    handles = [
        Patch(facecolor=color, edgecolor=_style.GREY, linewidth=0.4, label=f"{word} {sign}".strip())
        for outcome, (color, sign, word) in LOOKS.items()
        if outcome in seen
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1, columnspacing=1.2)
    return figure


def outcomes(laws: Sequence[str], peer: Mapping[str, Any]) -> list[str]:
    """Return what came of each law, and of the comparison with the dialect."""
    found = [q.outcome(law, peer["laws"].get(law, {"outcome": "not run"})) for law in laws]
    return [*found, outcome_of_drift(peer)]


def alike(laws: Sequence[str], peers: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the peers by what came of them, those that break most laws first, and ours last."""
    groups: dict[tuple[bool, *tuple[str, ...]], list[Mapping[str, Any]]] = {}
    for peer in peers:
        groups.setdefault((peer["arm"].startswith(OURS), *outcomes(laws, peer)), []).append(peer)
    return sorted(groups.values(), key=lambda group: (group[0]["arm"].startswith(OURS), -len(q.broken_laws(group[0]))))


def draw_cell(axes: Axes, x: float, y: float, outcome: str) -> None:
    """Draw what one law says of one peer."""
    color, sign, _ = LOOKS[outcome]
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, color=color, linewidth=0))
    axes.text(x, y, sign, ha="center", va="center_baseline", fontsize=6)


def draw_names(
    axes: Axes, laws: Sequence[str], peers: Sequence[str], rows: Sequence[float], places: Sequence[float]
) -> None:
    """Name the rows and the columns."""
    axes.set(xlim=(-0.5, places[-1] + 0.5), ylim=(rows[-1] + 1.5 + GAP, -0.5))
    axes.xaxis.set_ticks_position("top")
    axes.set_xticks(places, peers, rotation=90, ha="center", va="bottom", fontsize=5.5, linespacing=0.9)
    axes.set_yticks([*rows, rows[-1] + 1 + GAP], [*laws, SAME], fontsize=6)
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
        broken = [name.replace("_", " ") for name, found in peer["laws"].items() if found["outcome"] in q.BROKEN]
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
