"""What the rows of a log prove: steps that were taken, steps that were skipped, bounds on how many.

Each row has a status: 1 if it proves a step that was taken, -1 if it proves one that was skipped and none that was
taken, 0 if it proves neither. A finite gradient norm proves a step, a count of no skips does, a growth of the scale
does, and so does an update of a program that counts no skipped one. A scale that stands proves nothing, unless it has
been lower.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ampsim.diagnose.formats import LIMITS
from ampsim.diagnose.history import Floats
from ampsim.diagnose.way import Bools, Ints, Way

MANY = 2.0**40  # skips that no log counts


@dataclass(eq=False, kw_only=True)
class Evidence(Way):
    """A history and what it proves; arrays have one element per row unless they say otherwise."""

    @property
    def flags(self) -> bool:
        """Whether a skip is told on the row of its own step, with its scale."""
        return self.own or self.format.get("counts") == "each"

    @cached_property
    def guarded(self) -> bool:
        """Whether there is a scaler, which may skip and go on."""
        return bool(len(self.points[0]) or (self.counted > 0).any())

    @property
    def trainer(self) -> bool:
        """Whether the Trainer of transformers prints the losses, with DeepSpeed below it or without."""
        return self.program == "HF Trainer" or "trainer" in self.settings

    @cached_property
    def averaged(self) -> Bools:
        """Rows with a mean of norms beside a finite loss: not finite where one step of many was bad."""
        means = self.format.get("norm") == "mean" or self.unit == "epoch"
        return means & np.isfinite(self.loss)

    @cached_property
    def search(self) -> tuple[int, int] | None:
        """First and last point of the fall with which the log begins: no rise and no step that was taken before it.

        It ends where many lines show steps that were taken before the scale falls on.
        """
        rows = self.points[1]
        for first, last in self.descents[:1]:
            if (
                not (self.moves[: last + 1] > 0).any()
                and not (self.status[: rows[first]] == 1).any()
            ):
                falls = self.falls_between(first, last)
                steps = np.cumsum(self.status == 1)[rows[falls] - 1]
                if self.format.get("updates"):  # which are all taken
                    steps = np.maximum(self.bounds[0, rows[falls]], 0.0)
                taken = np.diff(steps)
                return first, int(falls[np.append(taken > LIMITS.long, True).argmax()])
        return None

    @cached_property
    def overflows(self) -> tuple[Ints, Floats]:
        """Rows at which a step overflowed, and at which scale, or a higher bound; a backoff is taken to halve it."""
        values, rows = self.points
        told = np.flatnonzero(self.told > 0)
        own = np.flatnonzero((self.counts == 1) & ~np.isnan(self.scale)) if self.flags else told[:0]
        below = (values > 0) & (values < self.format.get("start", 0.0))  # no run begins there
        lower = np.flatnonzero(below | ((self.moves < 0) & (not self.means)))
        few = (values > 0) & (
            values <= 20 * self.digit
        )  # powers of two like the others, in few decimals
        most = np.where(
            few, 2.0 ** np.floor(np.log2(np.where(few, values, 1.0) + self.digit)), values
        )[lower]
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
        rises = np.diff(self.total[at], prepend=0.0) - np.diff(
            np.nancumsum(counts)[at], prepend=0.0
        )
        rises[1:][np.diff(self.segment[at]) != 0] = (
            0.0  # what was counted before, of the steps that come again
        )
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
        printed = self.series[1][
            : 0 if self.settings.get("cut") else None
        ]  # cut lines may hide a start
        falls = (
            [last for _, last in self.falls_of(printed)]
            if self.means
            else printed[self.moves[printed] < 0]
        )
        taken = sum(
            self.proved(k)
            for k in falls
            if span.start <= rows[self.before[k]] and rows[k] < span.stop
        )
        return int(max(np.nansum(self.told[span]), np.nansum(self.counts[span]), taken))

    @cached_property
    def trusted(self) -> bool:
        """Whether a count of 0 since the last line proves that none was skipped: not beside falls that it hides."""
        rows, told = self.points[1], self.sentence
        if self.format.get("counts") == "since" and told.any():
            return False
        falls = (
            ()
            if self.means or self.format.get("counts") == "each"
            else np.flatnonzero(self.moves < 0)
        )
        spans = (
            (k, rows[self.before[k]], rows[k])
            for k in falls
            if not told[rows[k]] and self.counts[rows[k]] >= 0
        )
        return all(
            np.nansum(self.counted[first : last + 1]) >= self.proved(k) for k, first, last in spans
        )

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
        steps = (
            np.diff(self.step[at], prepend=0.0) if one else np.diff(self.step, prepend=np.nan)[at]
        )
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
        if self.flags or (
            self.trusted and not self.unsaid and counts != "since" and "count" in self.settings
        ):
            taken |= (
                self.counts == 0
            ) & ~total  # but where DeepSpeed steps, Megatron counts 0 whatever happens
        if self.unsaid:
            taken |= self.skipped == 0
        if not total.any():
            own_norm = ~(self.counted > 0) | (
                counts == "since" and self.trusted
            )  # Megatron's is of the last step
            held = _held(self.norm)
            fresh = held != np.append(
                np.nan, held[:-1]
            )  # a skipped step may print the last one's again
            taken |= finite & own_norm & fresh
        if self.format.get("updates"):
            taken |= self.numbered & (np.diff(self.step, prepend=np.nan) > 0) & ~self.sentence
        if (
            self.program == "HF Trainer" and not self.sentence.any()
        ):  # its schedule waits for steps, but with apex
            change = np.diff(self.rate, prepend=np.nan)
            taken = (taken | (change != 0)) & (~np.isnan(change) | finite)
        taken[self.points[1][self.moves > 0]] = True
        taken[self.points[1][self.stands]] = True
        return np.where(taken, 1, np.where(bad, -1, 0))

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
        if len(losses) < 8 and losses[-1] > LIMITS.rose * losses[:-1].max():
            return True
        quarters = [losses[at : at + part] for at in range(0, len(losses) - part + 1, part)]
        last, least = losses[-part:], min(quarters, key=np.median)
        above = np.searchsorted(np.sort(least), last).mean() > LIMITS.noise * part
        return len(losses) >= 4 and bool(
            above and np.median(last) > LIMITS.risen * np.median(least)
        )

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
        counts = self.counts.copy()
        if len(rows) and (self.status[: rows[0]] == 1).any():
            counts[np.flatnonzero(~np.isnan(self.total))[:1]] = (
                0.0  # what the first total counts may have come before
            )
        told, norms = np.nansum(self.told[rows]), np.isinf(self.norm[rows]).sum()
        return int(max(told, np.nansum(counts[rows]), norms))  # they may tell of one step


def _held(values: Floats) -> Floats:
    """Return values with the last known one in the place of each NaN."""
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return np.where(last < 0, np.nan, values[last])


def at_end(bad: Bools) -> int:
    """Return how many true entries end an array."""
    return int(len(bad) if bad.all() else np.argmin(bad[::-1]))
