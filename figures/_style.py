"""How every figure looks, and how it is saved so that the same data gives the same bytes.

Sizes are those of a two-column page, so that a figure is included unscaled and its text keeps its
size. The colours are Okabe and Ito's, told apart with any colour vision; an arm keeps its colour in
every figure.
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ampsim.core.files import write_atomically
from figures.results import Result

HERE = Path(__file__).parent

ONE_COLUMN = 3.3  # inches
TWO_COLUMNS = 6.9  # inches
PIXELS = 200  # per inch, of images and of what is rasterized
STAMP = 0.13  # inches, for the name of the device

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#6B6B6B"
CLEAR = {
    "facecolor": "white",
    "edgecolor": "none",
    "pad": 0.3,
}  # the box of a word that no dotted line runs through

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.0,
    "lines.solid_capstyle": "butt",
    "svg.hashsalt": "ampsim",  # element ids, else random
    "svg.fonttype": "path",  # text looks the same without the font
    "figure.dpi": 100,
}


@contextmanager
def style() -> Iterator[None]:
    """Apply matplotlib's defaults and `RC` on top, whatever the user's own matplotlibrc says."""
    with mpl.style.context(["default", RC]):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches; the layout keeps labels apart."""
    return Figure(figsize=(width, height), layout="constrained")


def devices(runs: Sequence[Result]) -> str:
    """Return the names of the devices that data comes from."""
    names = {
        f"{run.provenance['device']['type'].upper()}: {run.device}" for run in runs
    }
    return ", ".join(sorted(names))


def stamp(figure: Figure, source: str) -> None:
    """Say in the lower right corner what the data comes from, in a line of its own or beside a
    legend there.
    """
    layout = figure.get_layout_engine()
    room = 0.0 if figure.legends else STAMP / figure.get_figheight()
    if source and isinstance(layout, ConstrainedLayoutEngine):
        layout.set(rect=(0, room, 1, 1 - room))
        right = 1 - 0.03 / figure.get_figwidth()
        figure.text(right, 0.0, source, color=GREY, fontsize=7, ha="right", va="bottom")


def settle(figure: Figure) -> None:
    """Lay the figure out once and round where its axes stand, and its halves.

    The layout's solver gives positions that differ in their last bits from one process to the next;
    nobody sees that, but the names of SVG clip paths are hashes of them. 1e-5 of a page's width is
    2 micrometres.

    Raises:
        ValueError: The labels leave no room for the panels.
    """
    if engine := figure.get_layout_engine():
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "constrained_layout not applied")
            try:
                engine.execute(figure)
            except UserWarning as warning:
                raise ValueError(
                    "the names in the figure leave no room for its panels; draw fewer arms"
                ) from warning
    figure.set_layout_engine("none")
    for half in figure.subfigs:
        half.bbox_relative.set_points(half.bbox_relative.get_points().round(5))
    for axes in figure.axes:
        left, bottom, width, height = axes.get_position().bounds
        axes.set_position(
            (round(left, 5), round(bottom, 5), round(width, 5), round(height, 5))
        )


def save(figure: Figure, folder: Path, stem: str) -> Path:
    """Write `<stem>.svg` without dates, versions, or random ids, and return its path."""
    settle(figure)
    path = folder / f"{stem}.svg"
    # `savefig` would draw it twice, the first time for a layout that is settled already.
    figure.set_dpi(PIXELS)
    image = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(image, metadata={"Date": None})  # type: ignore[no-untyped-call]
    write_atomically(path, image.getvalue())
    return path


def label_panel(axes: Axes, letter: str, title: str) -> None:
    """Write the panel's letter and what it shows above it."""
    axes.set_title(f"{letter}  {title}")


def limit_line(axes: Axes, y: float, text: str) -> None:
    """Draw a number format's limit: a thin dotted line, named beside the axes so that no curve
    crosses the name.
    """
    axes.axhline(y, color=GREY, linewidth=0.7, linestyle=(0, (1, 1.5)), zorder=0)
    label_right(axes, y, y, text, GREY)


def label_right(axes: Axes, y: float, place: float, text: str, color: str) -> None:
    """Name a curve that ends at `y` beside the axes, at height `place`."""
    axes.annotate(
        text,
        (1.0, y),
        xycoords=("axes fraction", "data"),
        xytext=(1.02, place),
        textcoords=("axes fraction", "data"),
        color=color,
        va="center",
        fontsize=7,
        annotation_clip=False,
    )


def name_ends(
    axes: Axes,
    ends: Sequence[float],
    gap: float,
    names: Iterable[str],
    colors: Iterable[str],
) -> None:
    """Name curves beside the axes where they end, with at least `gap` between two names."""
    for end, place, text, color in zip(
        ends, spread(ends, gap), names, colors, strict=True
    ):
        label_right(axes, end, place, text, color)


def power_of_two(exponent: float) -> str:
    """Return the text for 2^exponent."""
    return f"$2^{{{exponent:g}}}$"


def power_of_ten(exponent: int) -> str:
    """Return the text for 10^exponent."""
    return f"$10^{{{exponent}}}$"


def thousands(number: float) -> str:
    """Return a number as it stands beside a tick: from 1000 on in thousands, with a k."""
    return f"{number / 1000:g} k" if number >= 1000 else f"{number:g}"


def number_ticks(axis: Axis, numbers: Sequence[float]) -> None:
    """Put ticks at these numbers, written out, and no others; after the axis has its scale."""
    axis.set_ticks(numbers, [thousands(number) for number in numbers])
    axis.set_ticks([], minor=True)


def power_ticks(axis: Axis, exponents: Sequence[int]) -> None:
    """Put ticks at these log2 of a scale, written as powers of two."""
    axis.set_ticks(exponents, [power_of_two(k) for k in exponents])


def draw_rows(axes: Axes) -> None:
    """Draw a light line through each row of marks, and no ticks beside their names."""
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def seeds(run: Result) -> str:
    """Return how many seeds a figure shows, in words of its title."""
    return f"{len(run.seeds)} seed{'s' * (len(run.seeds) > 1)}"


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Return label positions at least `gap` apart, each as near to its own as that allows, in the
    given order.
    """
    placed = [0.0] * len(positions)
    last = float("-inf")
    for i in sorted(range(len(positions)), key=positions.__getitem__):
        last = placed[i] = max(positions[i], last + gap)
    return placed
