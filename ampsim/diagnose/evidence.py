"""What the rows of a log prove: steps that were taken, steps that were skipped, bounds on how many, the scale's way.

Each row has a status: 1 if it proves a step that was taken, -1 if it proves one that was skipped and none that was
taken, 0 if it proves neither. A finite gradient norm proves a step, a count of no skips does, a growth of the scale
does, and so does an update of a program that counts no skipped one. A scale that stands proves nothing, unless it has
been lower.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ampsim.diagnose.formats import JUDGED, NAMED
from ampsim.diagnose.history import Floats, History

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NEAR = 5e-3  # relative error of a scale that was printed with few digits
MANY = 2.0**40  # skips that no log counts


@dataclass(eq=False, kw_only=True)
class Evidence(History):
    """A history and what it proves; arrays have one element per row unless they say otherwise."""

    @property
    def format(self) -> dict[str, Any]:
        """The program's row of the table of formats."""
        return NAMED.get(self.program, {})

    @cached_property
    def own(self) -> bool:
        """Whether the rows are values and flags by contract, as `ampsim.watch` writes them."""
        return "ampsim" in self.program or bool(self.settings.get("values"))

    @property
    def flags(self) -> bool:
        """Whether a skip is told on the row of its own step, with its scale."""
        return self.own or self.format.get("counts") == "each"

    @property
    def digit(self) -> float:
        """By how much a scale that was printed with few decimals may be wrong."""
        return float(self.format.get("least", 0.0))

    @property
    def lowest(self) -> float:
        """The lowest scale that a search may end at: 1, or less where the loss is a sum."""
        return 1.0 / float(self.format.get("sums", 1.0))

    @cached_property
    def averaged(self) -> Bools:
        """Rows with a mean of norms beside a finite loss: not finite where one step of many was bad."""
        means = self.format.get("norm") == "mean" or self.unit == "epoch"
        return means & np.isfinite(self.loss)

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
        logs[values == 0] = math.log2(self.digit) if self.digit else min(-150.0, logs.min(initial=0.0) - 1)
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
        return max(map(self.falls_of, self.series), key=lambda ways: sum(self.halvings(*way) for way in ways))

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

    @cached_property
    def search(self) -> tuple[int, int] | None:
        """First and last point of the fall with which the log begins: no rise and no step that was taken before it.

        It ends where many lines show steps that were taken before the scale falls on.
        """
        rows = self.points[1]
        for first, last in self.descents[:1]:
            if not (self.moves[: last + 1] > 0).any() and not (self.status[: rows[first]] == 1).any():
                falls = self.falls_between(first, last)
                taken = np.diff(np.cumsum(self.status == 1)[rows[falls] - 1])
                return first, int(falls[np.append(taken > JUDGED.long, True).argmax()])
        return None

    def halvings(self, first: int, last: int) -> float:
        """Return by how many halvings one point is lower than another."""
        return float(self.logs[first] - self.logs[last])

    def proved(self, point: int | np.signedinteger[Any]) -> int:
        """Return the skips that a fall to a point takes: one, or more where an overflow halves the scale."""
        left = float(self.points[0][point])
        if self.means or not self.format.get("halves") or not 0 < left < math.inf:
            return 1
        return max(1, math.ceil(float(self.logs[self.before[point]]) - math.log2(left + self.digit) - 0.1))

    @cached_property
    def overflows(self) -> tuple[Ints, Floats]:
        """Rows at which a step overflowed, and at which scale, or a higher bound; a backoff is taken to halve it."""
        values, rows = self.points
        told = np.flatnonzero(self.told > 0)
        own = np.flatnonzero((self.counts == 1) & ~np.isnan(self.scale)) if self.flags else told[:0]
        below = (values > 0) & (values < self.format.get("start", 0.0))  # no run begins there
        lower = np.flatnonzero(below | ((self.moves < 0) & (not self.means)))
        few = (values > 0) & (values <= 20 * self.digit)  # powers of two like the others, in few decimals
        most = np.where(few, 2.0 ** np.floor(np.log2(np.where(few, values, 1.0) + self.digit)), values)[lower]
        before = np.where(np.isnan(self.scale), 2 * self.left, self.scale)
        at = np.concatenate([told, rows[lower], own]).astype(np.int64)
        scales = np.concatenate([before[told], 2 * np.maximum(most, self.digit), self.scale[own]])
        kept = np.argsort(at, kind="stable")
        kept = kept[~np.isnan(scales[kept]) & (scales[kept] > 0)]
        return at[kept], scales[kept]

    @cached_property
    def unsaid(self) -> bool:
        """Whether the log counts skips, and it may be those since the last line or all of them."""
        values = self.skipped[~np.isnan(self.skipped)]
        said = self.settings.get("count") == "unsaid" and not self.own
        return bool(said and len(values) and values.max() > 0 and (np.diff(values) >= 0).all())

    @cached_property
    def counts(self) -> Floats:
        """Skips that the program counts since the row before, at least; NaN where it counts none."""
        counts = self.skipped.copy()
        if self.unsaid:
            return np.where(np.isnan(counts), np.nan, np.fmax(np.diff(counts, prepend=0.0), 0.0))
        at = np.flatnonzero(~np.isnan(self.total))
        rises = np.diff(self.total[at], prepend=0.0) - np.diff(np.nancumsum(counts)[at], prepend=0.0)
        rises[1:][np.diff(self.segment[at]) != 0] = 0.0  # what was counted before, of the steps that come again
        counts[at] = np.maximum(rises, 0.0)
        return np.where(counts > MANY, np.nan, counts)

    @cached_property
    def counted(self) -> Floats:
        """Skips that are proved on each row, by a count or a sentence; NaN where nothing is said."""
        return np.fmax(self.counts, self.told)

    def least(self, begin: int = 0, end: int | None = None) -> int:
        """Return the skips that some rows prove: by sentences, by counts or by falls, whichever are most.

        They tell of the same steps, not always in the same order.
        """
        rows, span = self.points[1], slice(begin, len(self.step) if end is None else end)
        printed = self.series[1][: 0 if self.settings.get("cut") else None]  # cut lines may hide a start
        falls = [last for _, last in self.falls_of(printed)] if self.means else printed[self.moves[printed] < 0]
        taken = sum(self.proved(k) for k in falls if span.start <= rows[self.before[k]] and rows[k] < span.stop)
        return int(max(np.nansum(self.told[span]), np.nansum(self.counts[span]), taken))

    @cached_property
    def trusted(self) -> bool:
        """Whether a count of 0 since the last line proves that none was skipped: not beside falls that it hides."""
        rows, told = self.points[1], self.sentence
        if self.format.get("counts") == "since" and told.any():
            return False
        falls = () if self.means or self.format.get("counts") == "each" else np.flatnonzero(self.moves < 0)
        spans = ((k, rows[self.before[k]], rows[k]) for k in falls if not told[rows[k]] and self.counts[rows[k]] >= 0)
        return all(np.nansum(self.counted[first : last + 1]) >= self.proved(k) for k, first, last in spans)

    @cached_property
    def skips(self) -> tuple[int, int | None]:
        """Bounds on the steps that were skipped, from what the first row counts to the last row."""
        least = self.least()
        return least, least if self.own and self.every_step else None

    @cached_property
    def progress(self) -> Bools:
        """Rows at which the skips' total has risen by less than the steps since it was last printed."""
        at = np.flatnonzero(~np.isnan(self.total))
        rises, one = np.diff(self.total[at], prepend=0.0), self.segment[-1] == 0
        steps = np.diff(self.step[at], prepend=0.0) if one else np.diff(self.step, prepend=np.nan)[at]
        same = np.diff(self.part, prepend=0.0)[at] == 0
        shown = np.zeros(len(self.total), np.bool_)
        shown[at] = self.numbered[at] & same & (steps > 0) & (rises < steps)
        return shown

    @cached_property
    def status(self) -> Ints:
        """What each row proves: see above."""
        counts, finite = self.format.get("counts"), np.isfinite(self.norm) & (self.norm > 0)
        total = ~np.isnan(self.total)
        bad = (self.counted > 0) | np.isinf(self.norm) & ~self.averaged
        taken = self.progress.copy()
        if self.flags or (self.trusted and not self.unsaid and counts != "since" and "count" in self.settings):
            taken |= (self.counts == 0) & ~total  # but where DeepSpeed steps, Megatron counts 0 whatever happens
        if self.unsaid:
            taken |= self.skipped == 0
        if not total.any():
            own_norm = ~(self.counted > 0) | (counts == "since" and self.trusted)  # Megatron's is of the last step
            held = _held(self.norm)
            fresh = held != np.append(np.nan, held[:-1])  # a skipped step may print the last one's again
            taken |= finite & own_norm & fresh
        if self.format.get("updates"):
            taken |= self.numbered & (np.diff(self.step, prepend=np.nan) > 0) & ~self.sentence
        if self.program == "HF Trainer" and not self.sentence.any():  # its schedule waits for steps, but with apex
            change = np.diff(self.rate, prepend=np.nan)
            taken = (taken | (change != 0)) & (~np.isnan(change) | finite)
        taken[self.points[1][self.moves > 0]] = True
        taken[self.points[1][self.stands]] = True
        return np.where(taken, 1, np.where(bad, -1, 0))

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
            stands[start] = above & (self.moves[start] == 0) & (steps >= JUDGED.stuck)
        return stands

    @cached_property
    def holds(self) -> bool:
        """Whether the scale has risen, and not fallen below where it was before."""
        up = np.flatnonzero(self.moves > 0)
        return bool(len(up)) and not self.means and bool(self.logs[-1] >= self.logs[self.before[up[-1]]])

    @property
    def updates(self) -> float:
        """Steps that were taken from the first row of the last start on, where its program counts no skipped one."""
        last = self.numbered & (self.segment == self.segment[-1])
        return float(np.ptp(self.step[last])) if self.format.get("updates") and last.any() else 0.0

    @cached_property
    def rises(self) -> bool:
        """Whether the loss is higher at the end than it was before."""
        losses = self.loss[np.isfinite(self.loss)]
        part = max(1, len(losses) // 4)
        if len(losses) < 2 or losses.min() <= 0:
            return False
        if len(losses) < 8 and losses[-1] > JUDGED.rose * losses[:-1].max():
            return True
        quarters = [losses[at : at + part] for at in range(0, len(losses) - part + 1, part)]
        last, least = losses[-part:], min(quarters, key=np.median)
        above = np.searchsorted(np.sort(least), last).mean() > JUDGED.noise * part
        return len(losses) >= 4 and bool(above and np.median(last) > JUDGED.risen * np.median(least))

    @cached_property
    def tail(self) -> Ints:
        """The rows after the last step that is known to have been taken which prove a skip."""
        after = int(np.flatnonzero(self.status == 1).max(initial=-1)) + 1
        return after + np.flatnonzero(self.status[after:] == -1)

    def goes_on(self, rows: Ints) -> bool:
        """Return whether more lines follow some skips than stand between two of them: of these nothing is known."""
        return bool(len(self.status) - 1 - rows[-1] > max(2, np.diff(rows).max(initial=0)))

    def weight(self, rows: Ints) -> int:
        """Return how many steps were skipped or had gradients that were not finite, at least, by some rows."""
        told, counts, norms = np.nansum(self.told[rows]), np.nansum(self.counts[rows]), np.isinf(self.norm[rows]).sum()
        return int(max(told, counts, norms))  # they may tell of one step


def _held(values: Floats) -> Floats:
    """Return values with the last known one in the place of each NaN."""
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return np.where(last < 0, np.nan, values[last])


def at_end(bad: Bools) -> int:
    """Return how many true entries end an array."""
    return int(len(bad) if bad.all() else np.argmin(bad[::-1]))
