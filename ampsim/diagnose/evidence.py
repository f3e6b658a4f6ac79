"""What the rows of a log prove: steps that were taken, steps that were skipped, bounds on how many, the scale's way.

Each row has a status: 1 if it proves a step that was taken, -1 if it proves one that was skipped and none that was
taken, 0 if it proves neither. A finite gradient norm proves a step, a count of no skips does, a growth of the scale
does, and so does an update of a program that counts no skipped one. A scale that stands proves nothing.
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
    def least(self) -> float:
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
    def logs(self) -> Floats:
        """The base-2 logarithm of each point; that of 0 is below all others, that of inf is 1024."""
        values = self.points[0]
        logs = np.log2(np.where(values > 0, values, 1.0)).clip(max=1024.0)
        logs[values == 0] = min(-150.0, logs.min(initial=0.0) - 1)
        return logs

    @cached_property
    def means(self) -> bool:
        """Whether the printed scales cannot be taken for values at a step: off the powers of two, or means by name."""
        if self.own:
            return False
        logs = np.log2(self.scale[(self.scale > 20 * self.least) & np.isfinite(self.scale)])
        return bool(self.settings.get("means") or (np.abs(logs - np.round(logs)) > 2 * NEAR).any())

    @cached_property
    def moves(self) -> Floats:
        """The log2 of the ratio of each two neighbouring points, 0 between segments and for near equals."""
        rows, moves = self.points[1], np.diff(self.logs)
        moves[(np.abs(moves) < 1.5 * NEAR) | (np.diff(self.segment[rows]) != 0)] = 0.0
        behind = self.sentence[rows[:-1]] & (moves > 0)
        if self.means:  # a sentence of a step may be printed before the mean that its step is in
            moves[behind] = 0.0
        if "engines" in self.settings:  # sentences do not tell of which one they are
            moves[behind & (np.diff(rows) > 0)] = 0.0
        return moves

    @cached_property
    def descents(self) -> list[tuple[int, int]]:
        """First and last point of each longest way on which the scale falls and never rises."""
        found: list[tuple[int, int]] = []
        segments = self.segment[self.points[1]]
        barred = np.flatnonzero((self.moves > 0) | (np.diff(segments) != 0))
        for begin, end in itertools.pairwise([-1, *barred, len(self.moves)]):
            falls = begin + 1 + np.flatnonzero(self.moves[begin + 1 : end] < 0)
            if len(falls):
                found.append((int(falls[0]), int(falls[-1]) + 1))
        return found

    @cached_property
    def search(self) -> tuple[int, int] | None:
        """First and last point of the fall with which the log begins: no rise and no step that was taken before it."""
        for first, last in self.descents[:1]:
            if not (self.moves[:first] > 0).any() and not (self.status[: self.points[1][first]] == 1).any():
                return first, last
        return None

    def halvings(self, first: int, last: int) -> float:
        """Return by how many halvings one point is lower than another."""
        return float(self.logs[first] - self.logs[last])

    def proved(self, first: int, last: int) -> int:
        """Return the skips that a fall between two points takes: one, or more where an overflow halves the scale."""
        left = float(self.points[0][last])
        if self.means or not self.format.get("halves") or not 0 < left < math.inf:
            return 1
        return max(1, math.ceil(float(self.logs[first]) - math.log2(left + self.least) - 0.1))

    @cached_property
    def overflows(self) -> tuple[Ints, Floats]:
        """Rows at which a step overflowed, and at which scale, or a higher bound; a backoff is taken to halve it."""
        values, rows = self.points
        told = np.flatnonzero((self.counted > 0) & self.sentence)
        own = np.flatnonzero((self.counted == 1) & ~np.isnan(self.scale)) if self.flags else told[:0]
        fell = np.flatnonzero(np.append(False, self.moves < 0) & (not self.means))
        below = np.flatnonzero((values > 0) & (values < self.format.get("start", 0.0)))  # no run begins there
        lower = np.concatenate([fell, below])
        few = (values > 0) & (values <= 20 * self.least)  # powers of two like the others, in few decimals
        most = np.where(few, 2.0 ** np.floor(np.log2(np.where(few, values, 1.0) + self.least)), values)[lower]
        before = np.where(np.isnan(self.scale), 2 * self.left, self.scale)
        at = np.concatenate([told, rows[lower], own]).astype(np.int64)
        scales = np.concatenate([before[told], 2 * most, self.scale[own]])
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
    def counted(self) -> Floats:
        """Skips that are proved by counts and sentences, since the row before; NaN where nothing is said."""
        skipped, total = self.skipped.copy(), self.total
        if self.unsaid:
            rose = np.diff(skipped, prepend=0.0)
            return np.where(np.isnan(skipped), np.nan, np.fmax(rose, 0.0))
        before = told = 0.0
        for at in np.flatnonzero(~np.isnan(total) | (skipped > 0)):
            if math.isnan(total[at]):
                told += skipped[at]
            else:
                before = 0.0 if total[at] < before else before
                skipped[at] = max(0.0, total[at] - before - told)
                before, told = total[at], 0.0
        return np.where(skipped > MANY, np.nan, skipped)

    def short(self, first: int, last: int, begin: int) -> int:
        """Return the skips that a fall between two points takes beyond those that are told from a row on."""
        told = np.nansum(self.counted[begin : self.points[1][last] + 1])
        return max(0, self.proved(first, last) - int(told))

    @cached_property
    def hidden(self) -> tuple[int, list[int]]:
        """Skips that falls of the scale take beyond what the log counts there, and the first such fall's two rows."""
        rows, found = self.points[1], dict[int, int]()
        if not self.means and self.format.get("counts") != "each":
            told = ~np.isnan(self.counted[rows[1:]]) & (np.diff(rows) > 0)
            for k in np.flatnonzero((self.moves < 0) & told).tolist():
                if short := self.short(k, k + 1, rows[k]):
                    found[k] = short
        return sum(found.values()), [int(row) for k in [*found][:1] for row in rows[k : k + 2]]

    @cached_property
    def trusted(self) -> bool:
        """Whether a count of 0 since the last line proves that none was skipped: not beside falls that it hides."""
        return not self.hidden[0] and not (self.format.get("counts") == "since" and self.sentence.any())

    @cached_property
    def skips(self) -> tuple[int, int | None]:
        """Bounds on the steps that were skipped, from what the first row counts to the last row."""
        one, rows, counted = self.segment[-1] == 0, self.points[1], int(np.nansum(self.counted))
        totals = np.flatnonzero(~np.isnan(self.total))
        told = totals[-1] if len(totals) and one else -1  # what came before is in the last total
        if told == len(self.total) - 1:
            return int(self.total[-1]), int(self.total[-1])
        if self.own and self.every_step and one:
            return counted, counted
        falls = self.descents if self.means else [(k, k + 1) for k in np.flatnonzero(self.moves < 0).tolist()]
        for first, last in falls:
            if rows[first] >= told:
                counted += self.short(first, last, rows[max(first - self.means, 0)])  # a mean is of the steps before
        return counted, None

    @cached_property
    def progress(self) -> Bools:
        """Rows at which the skips' total has risen by less than the steps since it was last printed."""
        at = np.flatnonzero(~np.isnan(self.total))
        rises, one = np.diff(self.total[at], prepend=0.0), self.segment[-1] == 0
        steps = np.diff(self.step[at], prepend=0.0) if one else np.diff(self.step, prepend=np.nan)[at]
        same = np.diff(self.segment, prepend=0.0)[at] == 0
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
            taken |= (self.counted == 0) & ~total  # but where DeepSpeed steps, Megatron counts 0 whatever happens
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
        taken[self.points[1][1:][self.moves > 0]] = True
        return np.where(taken, 1, np.where(bad, -1, 0))

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
        counted, norms = np.nansum(self.counted[rows]), np.isinf(self.norm[rows]).sum()
        return int(max(counted, norms))  # a sentence and a norm may tell of one step


def _held(values: Floats) -> Floats:
    """Return values with the last known one in the place of each NaN."""
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return np.where(last < 0, np.nan, values[last])


def at_end(bad: Bools) -> int:
    """Return how many true entries end an array."""
    return int(len(bad) if bad.all() else np.argmin(bad[::-1]))
