"""The way of the loss scale through a log: its points, how it moves from one to the next, where it falls and stands."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ampsim.diagnose.formats import LIMITS, NAMED
from ampsim.diagnose.history import Floats, History

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NEAR = 5e-3  # relative error of a scale that was printed with few digits


@dataclass(eq=False, kw_only=True)
class Way(History):
    """A history and the way of its scale; arrays have one element per point unless they say otherwise."""

    @property
    def format(self) -> dict[str, Any]:
        """The program's row of the table of formats."""
        return NAMED.get(self.program, {})

    @cached_property
    def own(self) -> bool:
        """Whether the rows are values and flags by contract, as `ampsim.runs.watch` writes them."""
        return "ampsim" in self.program or bool(self.settings.get("values"))

    @property
    def digit(self) -> float:
        """By how much a scale that was printed with few decimals may be wrong."""
        return float(self.format.get("least", 0.0))

    @property
    def lowest(self) -> float:
        """The lowest scale that a search may end at: 1, or less where the loss is a sum."""
        return 1.0 / float(self.format.get("sums", 1.0))

    @cached_property
    def points(self) -> tuple[Floats, Ints]:
        """Scales in the order of the log, one or two per row, and the row of each."""
        both = np.stack([self.scale, self.left], axis=1).ravel()
        known = ~np.isnan(both)
        return both[known], np.repeat(np.arange(len(self.scale)), 2)[known]

    @cached_property
    def part(self) -> Floats:
        """A number for the rows of each start; a row without a number, beside which a start may lie, is alone."""
        torn = np.isinf(self.bounds).all(axis=0)
        return np.where(torn, -1.0 - np.arange(len(self.step)), self.segment)

    @cached_property
    def logs(self) -> Floats:
        """The base-2 logarithm of each point, at most, and that of inf as 1024; a true 0 is below all others."""
        values = self.points[0]
        logs = np.log2(np.where(values > 0, values, 1.0)).clip(max=1024.0)
        logs[values == 0] = (
            math.log2(self.digit) if self.digit else min(-150.0, logs.min(initial=0.0) - 1)
        )
        return logs

    @cached_property
    def means(self) -> bool:
        """Whether the printed scales cannot be taken for values at a step: off the powers of two, or means by name."""
        if self.own:
            return False
        logs = np.log2(self.scale[(self.scale > 20 * self.digit) & np.isfinite(self.scale)])
        return bool(self.settings.get("means") or (np.abs(logs - np.round(logs)) > 2 * NEAR).any())

    @cached_property
    def series(self) -> list[Ints]:
        """The points that sentences tell and those that are printed beside a loss: each a way of its own."""
        told = self.sentence[self.points[1]]
        return [np.flatnonzero(told), np.flatnonzero(~told)]

    @cached_property
    def mixed(self) -> bool:
        """Whether the printed scales are of several runs: they leap down and up by turns."""
        moves = np.diff(self.logs[self.series[1]])
        turns = np.minimum(-moves[:-1], moves[1:])  # how far each goes down and up again
        return "mixed" in self.settings or bool(
            (turns > 1.5).sum() >= 3 or (turns > 0.5).sum() > 0.45 * max(len(turns), 6)
        )

    @cached_property
    def before(self) -> Ints:
        """The point before each one in its series; -1 if none is, or none that is known to be of the same start."""
        rows, found = self.points[1], np.full(len(self.points[1]), -1)
        for points in self.series:
            found[points[1:]] = points[:-1]
        apart = self.part[rows] != self.part[rows[found]]
        if "engines" in self.settings:  # sentences do not tell of which one they are
            apart |= self.sentence[rows] & (rows != rows[found])
        return np.where(apart | self.mixed, -1, found)

    @cached_property
    def moves(self) -> Floats:
        """The log2 of the ratio of each point to the one before it; 0 if there is none, and for near equals."""
        moves = np.where(self.before < 0, 0.0, self.logs - self.logs[self.before])
        return np.where(np.abs(moves) < 1.5 * NEAR, 0.0, moves)

    @cached_property
    def descents(self) -> list[tuple[int, int]]:
        """First and last point of each way on which the scale falls and never rises, in the series that falls most."""
        return max(
            map(self.falls_of, self.series),
            key=lambda ways: sum(self.halvings(*way) for way in ways),
        )

    def falls_of(self, points: Ints) -> list[tuple[int, int]]:
        """Return the first and last point of each longest way on which a series falls and never rises."""
        found: list[tuple[int, int]] = []
        barred = np.flatnonzero((self.moves[points] > 0) | (self.before[points] < 0))
        for begin, end in itertools.pairwise([*barred, len(points)]):
            falls = begin + 1 + np.flatnonzero(self.moves[points[begin + 1 : end]] < 0)
            if len(falls):
                found.append((int(points[falls[0] - 1]), int(points[falls[-1]])))
        return found

    def falls_between(self, first: int, last: int) -> Ints:
        """Return the points of one series after the first of two, up to the last, to which the scale falls."""
        points = next(each for each in self.series if last in each)
        return points[(points > first) & (points <= last) & (self.moves[points] < 0)]

    def halvings(self, first: int, last: int) -> float:
        """Return by how many halvings one point is lower than another."""
        return float(self.logs[first] - self.logs[last])

    def proved(self, point: int | np.signedinteger[Any]) -> int:
        """Return the skips that a fall to a point takes: one, or more where an overflow halves the scale."""
        left = float(self.points[0][point])
        if self.means or not self.format.get("halves") or not 0 < left < math.inf:
            return 1
        return max(
            1, math.ceil(float(self.logs[self.before[point]]) - math.log2(left + self.digit) - 0.1)
        )

    @cached_property
    def stands(self) -> Bools:
        """Points at which the scale stands, though it has been lower and would have been lowered by overflows."""
        rows, printed = self.points[1], self.series[1]
        stands = np.zeros(len(rows), np.bool_)
        if self.means or self.mixed or self.unit != "step":
            return stands
        for start in np.split(printed, np.flatnonzero(np.diff(self.part[rows[printed]])) + 1):
            lowest = np.minimum.accumulate(self.logs[start])
            steps = np.diff(self.step[rows[start]], prepend=np.inf)
            above = (self.logs[start] > lowest + 0.5) & self.numbered[rows[start]]
            stands[start] = above & (self.moves[start] == 0) & (steps >= LIMITS.stuck)
        return stands

    @cached_property
    def holds(self) -> bool:
        """Whether the scale has risen, and not fallen below where it was before."""
        up = np.flatnonzero(self.moves > 0)
        return (
            bool(len(up))
            and not self.means
            and bool(self.logs[-1] >= self.logs[self.before[up[-1]]])
        )
