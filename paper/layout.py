"""What the page shows: letters that lie on each other, and tables that touch, as the compiled pages have them."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.etree import ElementTree as ET

from paper.lint import Uses

SHARED = 0.4  # of the smaller letter's box: more than kerning and formulas share
SMALL = 3.0  # square points: what has less, such as a hyphen, may lie under an italic letter's overhang
BETWEEN = 10.0  # points from the end of a table or figure to the next one in its column, or to its first baseline
FOOT = 739.0  # points from the top of the page: where the text ends
CELL = 12.0  # points: letters are compared with those that start in the same or a neighbouring square of this size
_XLINK, _NUMBER = "{http://www.w3.org/1999/xlink}href", re.compile(r"-?[\d.]+")
Matrix = tuple[float, float, float, float, float, float]  # as SVG has it: x' = a x + c y + e, y' = b x + d y + f


class Box(NamedTuple):
    """The area of a letter, in points from the upper left corner of the page, and the run of text it belongs to."""

    left: float
    top: float
    right: float
    bottom: float
    run: int

    def area(self) -> float:
        """Return its area in square points."""
        return (self.right - self.left) * (self.bottom - self.top)

    def shared(self, other: "Box") -> float:
        """Return which share of the smaller box lies in both; a full stop counts as `SMALL`."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height / max(SMALL, min(self.area(), other.area())) if width > 0 < height else 0.0


def overlaps(pages: Sequence[str]) -> Iterator[str]:
    """Name the pages on which letters of two runs of text lie on each other, and where; `pages` are Typst's SVGs."""
    for number, page in enumerate(pages, 1):
        squares: dict[tuple[int, int], list[Box]] = defaultdict(list)
        for box in letters(page):
            squares[int(box.left // CELL), int(box.top // CELL)].append(box)
        found = []
        for (x, y), here in squares.items():
            beside = [box for dx, dy in ((1, 0), (-1, 1), (0, 1), (1, 1)) for box in squares.get((x + dx, y + dy), ())]
            pairs = [*combinations(here, 2), *((one, other) for one in here for other in beside)]
            found += [one for one, other in pairs if one.run != other.run and one.shared(other) > SHARED]
        if found:
            top, bottom = min(box.top for box in found), max(box.bottom for box in found)
            yield (
                f"page {number}: {len(found)} letters lie on others, {top:.0f} to {bottom:.0f} points from its top; "
                "shorten or move what stands there"
            )


def touching(uses: Uses) -> Iterator[str]:
    """Name the tables and figures that come too close to the one above, or leave the page at its end.

    Args:
        uses: what the compiled text has, as `build.used` gives it: where each begins and ends.
    """
    columns: dict[tuple[str, bool], list[tuple[float, float, str]]] = defaultdict(list)
    ends = {(use["name"], use["page"]): use["y"] for use in uses["bottoms"]}
    for use in uses["tops"]:
        for left in {True, False} if use["wide"] else {use["left"]}:
            # where it goes on over the page, to the end of this one
            end = ends.get((use["name"], use["page"]), float("inf"))
            columns[use["page"], left].append((use["y"], end, use["name"]))
    found = {
        f"page {page}: {below} begins {start - end:.1f} points below the end of {above}; expected at least {BETWEEN}"
        for (page, _), boxes in columns.items()
        for (_, end, above), (start, _, below) in pairwise(sorted(boxes))
        if start - end < BETWEEN
    }
    yield from sorted(found)
    for use in uses["bottoms"]:
        if use["y"] > FOOT:
            below = f"{use['y'] - FOOT:.0f} points below the text"
            yield f"page {use['page']}: {use['name']} ends {below}; place it elsewhere"


def letters(page: str) -> Iterator[Box]:
    """Yield the box of each letter of a page; those inside pictures are the pictures'."""
    root = ET.fromstring(page)  # noqa: S314 what Typst made a moment ago
    shapes = {node.get("id"): _extent(node) for node in root.iter() if node.tag.endswith("}symbol")}
    waiting: list[tuple[ET.Element, Matrix]] = [(root, (1, 0, 0, 1, 0, 0))]
    while waiting:
        node, matrix = waiting.pop()
        for child in node:
            if child.tag.endswith("}g") or child.tag.endswith("}a"):
                waiting.append((child, _times(matrix, _matrix(child.get("transform", "")))))
            elif child.tag.endswith("}use") and (shape := shapes.get((child.get(_XLINK) or "")[1:])):
                at = float(child.get("x", 0)), float(child.get("y", 0))
                corners = [_apply(matrix, at[0] + x, at[1] + y) for x in shape[::2] for y in shape[1::2]]
                (left, *_, right), (top, *_, bottom) = (sorted(values) for values in zip(*corners, strict=True))
                yield Box(left, top, right, bottom, id(node))


def _extent(symbol: ET.Element) -> tuple[float, float, float, float] | None:
    """Return the box of a glyph's outline with its control points, none of a space; Typst writes relative moves."""
    x = y = 0.0
    start, points = (x, y), list[tuple[float, float]]()
    for path in symbol.iter():
        for command, rest in re.findall(r"([A-Za-z])([^A-Za-z]*)", path.get("d", "")):
            numbers = [float(number) for number in _NUMBER.findall(rest)]
            if command in "Zz":
                x, y = start
            elif command == "h":
                x += numbers[0]
            elif command == "v":
                y += numbers[0]
            elif command == "M":
                x, y = start = numbers[0], numbers[1]
                continue
            else:
                moves = [(x + dx, y + dy) for dx, dy in zip(numbers[::2], numbers[1::2], strict=True)]
                x, y = moves[-1]
                start = (x, y) if command == "m" else start
                points += moves
            points.append((x, y))
    if len(points) < 2:
        return None
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _matrix(transform: str) -> Matrix:
    """Return what an SVG element's transform does."""
    found: Matrix = (1, 0, 0, 1, 0, 0)
    for name, rest in re.findall(r"(\w+)\(([^)]*)\)", transform):
        numbers = [float(number) for number in _NUMBER.findall(rest)]
        if name == "matrix":
            a, b, c, d, e, f = numbers
            step: Matrix = (a, b, c, d, e, f)
        elif name == "translate":
            step = (1, 0, 0, 1, numbers[0], numbers[1] if len(numbers) > 1 else 0)
        elif name == "scale":
            step = (numbers[0], 0, 0, numbers[-1], 0, 0)
        else:
            raise ValueError(f"{transform!r}: expected matrix, translate or scale")
        found = _times(found, step)
    return found


def _times(m: Matrix, n: Matrix) -> Matrix:
    x, y = _apply(m, n[4], n[5])
    return (
        m[0] * n[0] + m[2] * n[1], m[1] * n[0] + m[3] * n[1],
        m[0] * n[2] + m[2] * n[3], m[1] * n[2] + m[3] * n[3], x, y,
    )  # fmt: skip


def _apply(m: Matrix, x: float, y: float) -> tuple[float, float]:
    return m[0] * x + m[2] * y + m[4], m[1] * x + m[3] * y + m[5]
