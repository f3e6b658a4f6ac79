"""What losses and the learning rate tell of a run."""

import math
from collections.abc import Iterator

import numpy as np

from ampsim.diagnose.evidence import at_end
from ampsim.diagnose.formats import JUDGED
from ampsim.diagnose.statements import Maker, Statement


def loss(maker: Maker) -> Iterator[Statement]:
    """Yield losses that are not finite."""
    rows = np.flatnonzero(~np.isnan(maker.history.loss))
    bad = np.isinf(maker.history.loss[rows])
    if not bad.any():
        return
    end, part = at_end(bad), float(bad.mean())
    wrong = end >= 3 or (end and part >= 0.5) or (bad.sum() >= 3 and part > JUDGED.often)
    kind = "forward overflow" if wrong else "last losses" if end else "some losses"
    yield maker.make(kind, rows[bad], count=int(bad.sum()), of=str(len(rows)))


def rose(maker: Maker) -> Iterator[Statement]:
    """Yield that the loss rose at once, so that each one after is far above those before."""
    history, evidence = maker.history, maker.evidence
    rows = np.flatnonzero(np.isfinite(history.loss) & (history.segment == history.segment[-1]))
    losses = history.loss[rows]
    if len(rows) < 4 or (losses <= 0).any():
        return
    padded = np.concatenate([np.full(JUDGED.before, -np.inf), losses])
    highest = np.lib.stride_tricks.sliding_window_view(padded, JUDGED.before)[:-1].max(axis=1)
    lowest = np.minimum.accumulate(losses[::-1])[::-1]
    seen = len(rows) - np.arange(len(rows))
    shown = np.flatnonzero((lowest > JUDGED.jump * highest) & (np.arange(len(rows)) >= 2) & (seen >= 2))
    if not len(shown):
        return
    at = int(shown[0])
    fell = any(evidence.points[1][last] >= rows[at - 1] and evidence.halvings(first, last) >= 2
               for first, last in evidence.descents)  # fmt: skip
    if fell or min(at, seen[at]) >= 5:
        before, after = np.median(losses[max(0, at - JUDGED.before) : at]), np.median(losses[at:])
        yield maker.make("loss rose", rows[[at - 1, -1]], **{"from": f"{before:.3g}", "to": f"{after:.3g}"})


def rate(maker: Maker) -> Iterator[Statement]:
    """Yield what the learning rate tells of a run whose schedule waits while steps are skipped."""
    history = maker.history
    if history.program != "HF Trainer":
        return
    rows = np.flatnonzero(~np.isnan(history.rate))
    rates, steps = history.rate[rows], history.step[rows]
    if len(rows) >= 3 and (rates == 0).all():
        yield maker.make("rate stands still", rows, count=len(rows))
    gaps, rises = np.diff(steps), np.diff(rates)
    if len(rises) < 4 or not history.numbered[rows].all() or (gaps <= 0).any():
        return
    slopes = rises / gaps
    most = slopes.max()
    full = np.flatnonzero(slopes > most * (1 - 1e-4))
    if most <= 0 or len(full) < 3 or not (rises[: full[-1] + 1] >= 0).all():
        return
    lost = (gaps - rises / most)[: full[-1] + 1]
    begin = max(0.0, steps[0] - rates[0] / most - 1)
    whole = np.round(lost)
    if (np.abs(lost - whole) > 0.05).any() or rates[0] / most > steps[0] + 1:
        return
    low = int(whole.sum() + math.floor(begin + 0.05))
    if low:
        yield maker.make("rate counts", rows[: full[-1] + 2], since=True, skips=(low, None))
