"""Every panel shows its data, and every text can be read at the width at which the figure is
printed.
"""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from experiments.runner.cli import main as run_experiment
from figures import __main__ as cli
from figures import _style, rendering, results
from tests.figures.drawings import drawn

SMALLEST = 7  # points, at the printed width
CUT = {
    ("exponent_heatmap", 6)
}  # the range of fp16 leaves the binades that hold gradients
OFF = 0.02  # of a panel's marks may be outside its axes
OVERLAP = 0.1  # of the smaller text's box


def figures() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("stem", cli.stems())


def laid_out(stem: str) -> Figure:
    """Return the figure, drawn once, so that boxes of texts are known."""
    figure = drawn(stem)
    if not isinstance(figure.canvas, FigureCanvasAgg):
        FigureCanvasAgg(figure)
    figure.canvas.draw()
    return figure


def off(axes: Axes) -> tuple[int, int]:
    """Return how many of a panel's marks are outside its axes, and how many there are."""
    marks = [
        axes.transData.transform(line.get_xydata())
        for line in axes.lines
        if line.get_visible() and line.get_transform().contains_branch(axes.transData)
    ]
    marks += [
        axes.transData.transform(np.ma.filled(area.get_offsets().astype(float), np.nan))
        for area in axes.collections
        if area.get_offset_transform().contains_branch(axes.transData)
    ]
    marks += [
        bar.get_window_extent().get_points()
        for bar in axes.patches
        if bar.get_transform().contains_branch(axes.transData)
    ]
    if not marks:
        return 0, 0
    points = np.concatenate(marks)
    points = points[np.isfinite(points).all(axis=1)]
    box = axes.bbox.padded(1.0)
    inside = (points >= (box.x0, box.y0)) & (points <= (box.x1, box.y1))
    return int((~inside.all(axis=1)).sum()), len(points)


def texts(figure: Figure) -> list[Text]:
    """Return each text that is drawn: tick labels beyond the ends of an axis are not."""
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    ticks = [
        tick
        for axis in axes
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
    ]
    beyond = {id(label) for tick in ticks for label in (tick.label1, tick.label2)}
    beyond -= {
        id(label)
        for axis in axes
        for tick in axis._update_ticks()
        for label in (tick.label1, tick.label2)
    }
    found = figure.findobj(
        lambda artist: isinstance(artist, Text) and artist.get_visible()
    )
    return [
        text for text in found if text.get_text().strip() and id(text) not in beyond
    ]


@figures()
def test_panels_show_their_marks(stem: str) -> None:
    counts = {i: off(axes) for i, axes in enumerate(laid_out(stem).axes)}
    cut_off = {i: both for i, both in counts.items() if both[0] > OFF * both[1]}
    assert {i: both for i, both in cut_off.items() if (stem, i) not in CUT} == {}


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Return the pairs of texts of which one covers a part of the other."""
    pairs = []
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    for (one, first), (other, second) in combinations(boxes, 2):
        common = Bbox.intersection(first, second)
        smaller = min(first.width * first.height, second.width * second.height)
        if common is not None and common.width * common.height > OVERLAP * smaller:
            pairs.append((one, other))
    return pairs


@figures()
def test_texts_do_not_overlap(stem: str) -> None:
    assert overlapping(laid_out(stem)) == []


RATES = "--steps 20 --lrs 0.01 0.015 0.02 0.03 0.035 0.04 0.05"


@pytest.mark.parametrize(
    ("stem", "options"),
    [("scale_crash", RATES), ("overflow_storm", ""), ("exponent_heatmap", "")],
)
def test_short_runs_are_legible(stem: str, options: str, tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    assert run_experiment(stem, ["--smoke", "--out", str(path), *options.split()]) == 0
    run = results.read(path, stem)
    with _style.style():
        figure = rendering.draw_results(stem, [run])
        _style.settle(figure)
        FigureCanvasAgg(figure).draw()
        assert overlapping(figure) == []
    assert all(axes.bbox.width > 50 for axes in figure.axes)


def test_labels_without_room_raise() -> None:
    figure = _style.new_figure(_style.ONE_COLUMN, 2.0)
    figure.subplots().text(30, 0.5, "far to the right of the axes")
    with pytest.raises(ValueError, match="leave no room"):
        _style.settle(figure)


@figures()
def test_texts_are_inside_the_figure(stem: str) -> None:
    figure = laid_out(stem)
    page = figure.bbox.padded(2.0)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    outside = [text for text, box in boxes if page.count_contains(box.corners()) < 4]
    assert outside == []


@figures()
def test_texts_are_large_enough(stem: str) -> None:
    small = [text for text in texts(laid_out(stem)) if text.get_fontsize() < SMALLEST]
    assert [text.get_text() for text in small] == []


def is_number(tick: str) -> bool:
    """Return whether a tick label is a number, a power such as $2^{-4}$, or thousands such as 2 k."""
    return (
        re.fullmatch(
            r"[-+\d., k%^{}$\N{MINUS SIGN}]+", tick.replace("\\mathdefault", "")
        )
        is not None
    )


@figures()
def test_numeric_axes_have_labels(stem: str) -> None:
    figure = laid_out(stem)
    drawn_texts = {id(text) for text in texts(figure)}
    bare = []
    for i, axes in enumerate(figure.axes):
        part = axes.get_figure(root=False)
        for name, axis, shared in (
            ("x", axes.xaxis, part.get_supxlabel()),
            ("y", axes.yaxis, part.get_supylabel()),
        ):
            ticks = [
                tick.get_text()
                for tick in axis.get_ticklabels()
                if id(tick) in drawn_texts
            ]
            numbers = ticks and all(map(is_number, ticks))
            if numbers and not axis.label.get_text() and not shared:
                bare.append((i, name, ticks))
    assert bare == []
