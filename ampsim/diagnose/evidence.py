"""What the rows of a log prove: steps that were taken, steps that were skipped, bounds on how many, the scale's way.

Each row has a status: 1 if it proves a step that was taken, -1 if it proves one that was skipped and none that was
taken, 0 if it proves neither. A finite gradient norm proves a step, a count of no skips does, a growth of the scale
does, and so does an update of a program that counts no skipped one. A scale that stands proves nothing.
"""

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


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of one history; arrays have one element per row unless they say otherwise."""

    history: History

    @property
    def format(self) -> dict[str, Any]:
        """The program's row of the table of formats."""
        return NAMED.get(self.history.program, {})

    @cached_property
    def own(self) -> bool:
        """Whether the rows are values and flags by contract, as `ampsim.watch` writes them."""
        return "ampsim" in self.history.program or bool(self.history.settings.get("values"))

    @property
    def least(self) -> float:
        """By how much a scale that was printed with few decimals may be wrong."""
        return float(self.format.get("least", 0.0))

    @cached_property
    def averaged(self) -> Bools:
        """Rows with a mean of norms beside a finite loss: not finite where one step of many was bad."""
        means = self.format.get("norm") == "mean" or self.history.unit == "epoch"
        return means & np.isfinite(self.history.loss)

    @cached_property
    def points(self) -> tuple[Floats, Ints]:
        """Scales in the order of the log, one or two per row, and the row of each."""
        both = np.stack([self.history.scale, self.history.left], axis=1).ravel()
        rows = np.repeat(np.arange(len(self.history.scale)), 2)
        known = ~np.isnan(both)
        return both[known], rows[known]

    @cached_property
    def means(self) -> bool:
        """Whether the printed scales cannot be taken for values at a step: off the powers of two, or means by name."""
        if self.own:
            return False
        values = self.history.scale[(self.history.scale > 20 * self.least) & np.isfinite(self.history.scale)]
        logs = np.log2(values)
        return bool(self.history.settings.get("means") or (np.abs(logs - np.round(logs)) > 2 * NEAR).any())

    @cached_property
    def moves(self) -> Floats:
        """The log2 of the ratio of each two neighbouring points, 0 between segments and for near equals."""
        values, rows = self.points
        logs = np.array([log2_of(each) for each in values])
        logs[values == 0] = min(-150.0, logs.min(initial=0.0) - 1)
        moves = np.diff(logs)
        segments = self.history.segment[rows]
        moves[(np.abs(moves) < 1.5 * NEAR) | (np.diff(segments) != 0)] = 0.0
        if self.means:  # a sentence of a step may be printed before the mean that its step is in
            moves[self.history.sentence[rows[:-1]] & (moves > 0)] = 0.0
        if "engines" in self.history.settings:  # sentences do not tell of which one they are
            moves[self.history.sentence[rows[:-1]] & (moves > 0) & (np.diff(rows) > 0)] = 0.0
        return np.asarray(moves)

    @cached_property
    def descents(self) -> list[tuple[int, int]]:
        """First and last point of each longest way on which the scale falls and never rises."""
        found: list[tuple[int, int]] = []
        start, end = -1, -1
        segments = self.history.segment[self.points[1]]
        for k, move in enumerate(self.moves):
            if start >= 0 and (move > 0 or segments[k] != segments[k + 1]):
                found.append((start, end))
                start = -1
            if move < 0:
                start = k if start < 0 else start
                end = k + 1
        return [*found, (start, end)] if start >= 0 else found

    @cached_property
    def search(self) -> tuple[int, int] | None:
        """First and last point of the fall with which the log begins: no rise and no step that was taken before it."""
        if not self.descents:
            return None
        first, last = self.descents[0]
        taken = (self.status[: self.points[1][first]] == 1).any()
        return None if (self.moves[:first] > 0).any() or taken else (first, last)

    def halvings(self, first: int, last: int) -> float:
        """Return by how many halvings one point is lower than another."""
        values = self.points[0]
        return log2_of(values[first]) - log2_of(values[last])

    def proved(self, first: int, last: int) -> int:
        """Return the skips that a fall between two points takes: one, or more where an overflow's factor is fixed."""
        factor = self.format.get("factor")
        if self.means or factor is None or not 0 < self.points[0][last] < math.inf:
            return 1
        old, new = self.points[0][first], self.points[0][last] + self.least
        return max(1, math.ceil(math.log2(old / new) / math.log2(factor) - 0.1))

    @cached_property
    def overflows(self) -> tuple[Ints, Floats]:
        """Rows at which a step overflowed, and at which scale, or a higher bound; a backoff is taken to halve it."""
        told = np.flatnonzero((self.history.skipped > 0) & self.history.sentence)
        before, left = self.history.scale[told], self.history.left[told]
        values, rows = self.points
        fell = np.flatnonzero(self.moves < 0) + 1 if not self.means else np.zeros(0, np.int64)
        own = np.flatnonzero((self.history.skipped == 1) & ~np.isnan(self.history.scale)) if self.flags else told[:0]
        below = np.flatnonzero((values > 0) & (values < self.format.get("start", 0.0)))  # no run begins there
        few = (values > 0) & (values <= 20 * self.least)  # powers of two like the others, in few decimals
        most = values.copy()
        most[few] = 2.0 ** np.floor(np.log2(values[few] + self.least))
        at = np.concatenate([told, rows[fell], own, rows[below]]).astype(np.int64)
        scales = np.concatenate([
            np.where(np.isnan(before), 2 * left, before), 2 * most[fell], self.history.scale[own], 2 * most[below],
        ])  # fmt: skip
        kept = np.argsort(at, kind="stable")
        kept = kept[~np.isnan(scales[kept]) & (scales[kept] > 0)]
        return at[kept], scales[kept]

    @property
    def flags(self) -> bool:
        """Whether a skip is told on the row of its own step, with its scale."""
        return self.own or self.format.get("counts") == "each"

    @cached_property
    def unsaid(self) -> bool:
        """Whether the log counts skips, and it may be those since the last line or all of them."""
        values = self.history.skipped[~np.isnan(self.history.skipped)]
        said = self.history.settings.get("count") == "unsaid" and not self.own
        return bool(said and len(values) and values.max() > 0 and (np.diff(values) >= 0).all())

    @cached_property
    def skipped(self) -> Floats:
        """Skips that are proved by counts and sentences, since the row before; NaN where nothing is said."""
        skipped, total = self.history.skipped.copy(), self.history.total
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

    @cached_property
    def risen(self) -> Floats:
        """By how much the total of the skips rose since it was last printed; NaN where it is not."""
        risen, known = np.full(len(self.history.total), np.nan), np.flatnonzero(~np.isnan(self.history.total))
        risen[known] = np.diff(self.history.total[known], prepend=0.0)
        return risen

    @cached_property
    def trusted(self) -> bool:
        """Whether a count of 0 since the last line proves that none was skipped: not beside falls that it hides."""
        return not self.hidden[0] and not (self.format.get("counts") == "since" and self.history.sentence.any())

    @cached_property
    def hidden(self) -> tuple[int, list[int]]:
        """Skips that falls of the scale take beyond what the log counts there, and the first such fall's two rows."""
        rows = self.points[1]
        extra, first = 0, list[int]()
        if self.means or self.format.get("counts") == "each":
            return 0, first
        for k in np.flatnonzero(self.moves < 0):
            said = self.skipped[rows[k] : rows[k + 1] + 1]
            short = self.proved(int(k), int(k) + 1) - float(np.nansum(said))
            if short > 0 and not np.isnan(said[-1]) and rows[k] != rows[k + 1]:
                extra += int(short)
                first = first or [int(rows[k]), int(rows[k + 1])]
        return extra, first

    @cached_property
    def skips(self) -> tuple[int, int | None]:
        """Bounds on the steps that were skipped, from what the first row counts to the last row."""
        total = self.history.total[~np.isnan(self.history.total)]
        one = self.history.segment[-1] == 0
        counted = int(np.nansum(self.skipped))
        if len(total) and one and not np.isnan(self.history.total[-1]):
            return int(total[-1]), int(total[-1])
        if self.own and self.history.every_step and one:
            return counted, counted
        rows, extra = self.points[1], 0
        falls = [(int(k), int(k) + 1) for k in np.flatnonzero(self.moves < 0)]
        totals = np.flatnonzero(~np.isnan(self.history.total))
        told = totals[-1] if len(totals) and one else -1  # what came before is in the last total
        for first, last in self.descents if self.means else falls:
            if rows[first] < told:
                continue
            begin = rows[max(first - 1, 0)] if self.means else rows[first]  # a mean is of the steps before it, too
            said = float(np.nansum(self.skipped[begin : rows[last] + 1]))
            extra += max(0, self.proved(first, last) - int(said))
        return counted + extra, None

    @cached_property
    def steps(self) -> Floats:
        """Steps since the row before, by the log's own numbers; NaN where they are not known."""
        history = self.history
        steps = np.diff(history.step, prepend=np.nan)
        counts = ~np.isnan(history.total)
        if counts.any() and history.segment[-1] == 0:
            steps[np.flatnonzero(counts)[0]] = history.step[counts][0]
            at = np.flatnonzero(counts)
            steps[at[1:]] = np.diff(history.step[at])
        steps[(np.diff(history.segment, prepend=0) != 0) | ~history.numbered] = np.nan
        return np.where(steps > 0, steps, np.nan)

    @cached_property
    def status(self) -> Ints:
        """What each row proves: see above."""
        history, skipped = self.history, self.skipped
        counts = self.format.get("counts")
        total = ~np.isnan(history.total)
        bad = (skipped > 0) | np.isinf(history.norm) & ~self.averaged
        taken = total & (self.risen < self.steps)
        if self.flags or (self.trusted and not self.unsaid and counts != "since" and "count" in history.settings):
            taken |= (skipped == 0) & ~total  # but where DeepSpeed steps, Megatron counts 0 whatever happens
        if self.unsaid:
            taken |= history.skipped == 0
        if not total.any():
            own_norm = ~(skipped > 0) | (counts == "since" and self.trusted)  # Megatron's is of the last step
            held = _held(history.norm)
            fresh = held != np.append(np.nan, held[:-1])  # a skipped step may print the last one's again
            taken |= np.isfinite(history.norm) & (history.norm > 0) & own_norm & fresh
        if self.format.get("updates"):
            taken |= history.numbered & (np.diff(history.step, prepend=np.nan) > 0) & ~history.sentence
        if history.program == "HF Trainer":  # its schedule waits while steps are skipped
            taken |= np.diff(history.rate, prepend=np.nan) != 0
            taken &= ~np.isnan(np.diff(history.rate, prepend=np.nan)) | (history.norm > 0) & np.isfinite(history.norm)
        rose = self.points[1][1:][self.moves > 0]
        taken[rose] = True
        return np.where(taken, 1, np.where(bad, -1, 0))

    @cached_property
    def rises(self) -> bool:
        """Whether the loss is higher at the end than it was before."""
        losses = self.history.loss[np.isfinite(self.history.loss)]
        part = max(1, len(losses) // 4)
        if len(losses) < 2 or losses.min() <= 0:
            return False
        if len(losses) < 8 and losses[-1] > JUDGED.rose * losses[:-1].max():
            return True
        quarters = [float(np.median(losses[at : at + part])) for at in range(0, len(losses) - part + 1, part)]
        return len(losses) >= 4 and bool(np.median(losses[-part:]) > JUDGED.risen * min(quarters))

    @cached_property
    def tail(self) -> Ints:
        """The rows after the last step that is known to have been taken which prove a skip."""
        good = np.flatnonzero(self.status == 1)
        after = int(good[-1]) + 1 if len(good) else 0
        return after + np.flatnonzero(self.status[after:] == -1)

    def goes_on(self, rows: Ints) -> bool:
        """Return whether more lines follow some skips than stand between two of them: of these nothing is known."""
        return bool(len(self.status) - 1 - rows[-1] > max(2, np.diff(rows).max(initial=0)))

    def weight(self, rows: Ints) -> int:
        """Return how many steps were skipped or had gradients that were not finite, at least, by some rows."""
        counted, norms = np.nansum(self.skipped[rows]), np.isinf(self.history.norm[rows]).sum()
        return int(max(counted, norms))  # a sentence and a norm may tell of one step


def _held(values: Floats) -> Floats:
    """Return values with the last known one in the place of each NaN."""
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return np.where(last < 0, np.nan, values[last])


def at_end(bad: Bools) -> int:
    """Return how many true entries end an array."""
    return int(len(bad) if bad.all() else np.argmin(bad[::-1]))


def log2_of(scale: float) -> float:
    """Return the logarithm of a scale; that of 0 is -150, of inf 1024."""
    return -150.0 if scale == 0 else 1024.0 if math.isinf(scale) else math.log2(scale)
