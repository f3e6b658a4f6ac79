"""What losses, the learning rate, norms and samples tell: not finite, risen, standing, clipped while scaled, lost."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ampsim.diagnose.evidence import Evidence, at_end
from ampsim.diagnose.exponents import flushed
from ampsim.diagnose.formats import LIMITS
from ampsim.diagnose.history import Floats
from ampsim.diagnose.statements import ENDS, Statement, make
from ampsim.diagnose.way import Bools, Ints
from ampsim.diagnose.wording import counted

DEAD = 0.99  # share of a layer's nonzero gradients below fp16 at which it learns nothing


def norm(run: Evidence) -> Iterator[Statement]:
    """Yield norms that are not finite, and what the loss says of these steps."""
    rows = np.flatnonzero(~np.isnan(run.norm))
    bad, zeros = np.isinf(run.norm[rows]), at_end(run.norm[rows] == 0) if len(rows) else 0
    if zeros >= LIMITS.long and run.loss[rows].any():
        losses = run.loss[rows[-zeros:]]
        known = losses[~np.isnan(losses)]
        stands = len(known) >= LIMITS.long and math.isfinite(known[0]) and (known == known[0]).all()
        stands = (
            stands and round(float(known[0]), 3) != known[0]
        )  # in few digits it may seem to stand
        told = {"loss": f"{known[0]:.7g}"} if stands else {}
        yield make(
            run, "loss-stands" if stands else "norm-0", rows[-zeros:], count=(zeros, None), **told
        )
    if not bad.any() or run.settings.get("cut"):
        return
    begins = np.zeros(
        len(rows), np.bool_
    )  # the first norms of each start may be of the search for a scale
    for start in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(run.part[rows])) + 1):
        first = start[np.logical_and.accumulate(bad[start])]
        search = not (run.status[rows[start]] == 1).any() and of_a_search(
            run, rows[start], len(start)
        )
        begins[first] = len(first) < len(start) or search
    later = bad & ~begins
    finite = np.isfinite(run.loss).any() and not np.isinf(run.loss[rows[bad][0] :]).any()
    if begins.all():
        yield make(run, "first-norms", rows, count=(len(rows), None))
        return
    many = LIMITS.long if run.guarded and not bad[-1] else 3
    wrong = at_end(later) >= 3 or (later.sum() >= many and later[~begins].mean() > 0.25)
    kind = (
        ("mean-norms" if run.averaged[rows[bad]].all() else "norm-not-finite")
        if wrong
        else "some-norms"
    )
    if wrong or (finite and not bad[-1] and "ampsim" not in run.program):
        yield make(run, kind, rows[bad], count=(int(bad.sum()), None))


def of_a_search(run: Evidence, rows: Ints, weight: int) -> bool:
    """Return whether so many skips, or norms that are not finite, may be those of a search whose scales are unsaid."""
    norms = bool(np.isinf(run.norm[rows]).any())
    last = float(run.bounds[1, rows[-1]]) if run.unit == "step" else -math.inf
    last -= run.step[rows[0]] if run.segment[rows[0]] else 0.0  # of a later start
    if norms:
        return bool(max(weight, last) <= LIMITS.halved)
    return bool(weight < LIMITS.long or 0 <= last <= LIMITS.search)


def scaled_norm(run: Evidence) -> Iterator[Statement]:
    """Yield that a norm was taken before unscaling, or that gradients were clipped there."""
    known = (run.scale > 0) & np.isfinite(run.scale)
    usable = known & np.isfinite(run.norm) & (run.norm > 0)
    norms, scales = run.norm[usable], run.scale[usable]
    if run.means or len(norms) < 8:
        return
    slope, moves = _slope(np.log2(scales), np.log2(norms))
    low, high = np.quantile(norms * scales, [0.1, 0.9])
    typical = float(np.median(norms))
    if slope > 0.8 and moves >= 4 and typical > 100:
        yield make(
            run, "scaled-norm", ENDS, moves=moves, true=float(f"{np.median(norms / scales):.3g}")
        )
    elif len(norms) >= 20 and high < 1.02 * low and typical < 1e-2:
        true, typical = float(f"{low:.3g}"), float(f"{typical:.3g}")
        yield make(run, "scaled-clip", ENDS, true=true, typical=typical)


def _slope(scales: Floats, norms: Floats) -> tuple[float, int]:
    """Return how many octaves a norm moves per octave of the scale, from one row to the next, and in how many moves.

    Some programs print the scale that a step had, others the one that it left, which the next norm has.
    """
    found = [(0.0, 0)]
    for late in (0, 1):
        x, y = np.diff(scales[: len(scales) - late]), np.diff(norms[late:])
        if moves := int((x != 0).sum()):
            found.append((float(x @ y / (x @ x)), moves))
    return max(found)


def dead_layers(run: Evidence) -> Iterator[Statement]:
    """Yield the layers that get no gradient, with their names; nothing if there are none, or if all are dead."""
    if len(run.samples) < 2:
        return
    share: dict[str, list[float]] = {}
    known = ~np.isnan(run.scale)
    for sample in run.samples:
        scale = (
            float(np.interp(sample.step, run.step[known], run.scale[known]))
            if known.any()
            else np.nan
        )
        for name, counts in sample.counts.items():
            share.setdefault(name, []).append(_flushed(counts, scale))
    dead = [name for name, shares in share.items() if np.median(shares) >= DEAD]
    if dead and len(dead) < len(share):
        names = ", ".join(dead[:4]) + (
            f" and {counted(len(dead) - 4, 'other')}" if len(dead) > 4 else ""
        )
        yield make(run, "dead-layer", ENDS, count=str(len(dead)), of=str(len(share)), names=names)


def _flushed(counts: npt.NDArray[np.int64], scale: float) -> float:
    """Return the share of the finite elements that float16 would make zero at a scale; zeros are counted too."""
    finite = int(counts[:-2].sum())
    if not finite or not scale > 0:
        return 0.0
    return float(counts[0] + flushed(counts[1:-2], -149, np.float64(scale))) / finite


def loss(run: Evidence) -> Iterator[Statement]:
    """Yield losses that are not finite, or that the Trainer prints as 0."""
    rows = np.flatnonzero(~np.isnan(run.loss))
    bad, losses = np.isinf(run.loss[rows]), run.loss[rows]
    real = bool(
        ((losses == 0) & np.isfinite(run.norm[rows])).any()
    )  # as GRPO's is, whatever the norm
    zeros = at_end((losses == 0) & np.isnan(run.norm[rows])) if run.trainer and not real else 0
    before = losses[-zeros - 1] if 0 < zeros < len(rows) else 0.0
    beside = (losses == 0) & np.isinf(run.norm[rows]) & (not real)
    if beside.any() and _lasting(beside, guarded=run.guarded):
        yield make(run, "loss-0-beside-the-norm", rows[beside], count=(int(beside.sum()), None))
    if len(rows) >= LIMITS.long and not losses.any() and not run.norm[rows].any():
        yield make(run, "no-gradient", rows, count=(len(rows), None))
    if zeros == len(rows) >= 3 or (
        len(rows) >= LIMITS.long and not losses.any() and np.isnan(run.norm[rows]).all()
    ):
        yield make(run, "loss-0-throughout", rows, count=(len(rows), None))
    if before >= LIMITS.doubted:
        shown = bad.any() or before >= LIMITS.far or (zeros >= 3 and before >= LIMITS.shown)
        kind = "loss-0" if shown else "last-losses-0"
        yield make(run, kind, rows[-zeros:], count=(zeros, None), before=f"{before:.4g}")
    if not bad.any():
        return
    lasting = _lasting(bad, guarded=run.guarded)
    if (
        run.format.get("loss") == "mean"
    ):  # who scores later has taken steps, and one batch is enough for a mean
        lasting &= bool(bad[-1]) and run.says.get("scores", [0])[-1] < run.line[rows[bad][0]]
    kind = "loss-not-finite" if lasting else "last-losses" if bad[-1] else "some-losses"
    yield make(run, kind, rows[bad], count=(int(bad.sum()), None))


def _lasting(bad: Bools, *, guarded: bool) -> bool:
    """Return whether losses that are not finite are many, or end the log of a run that is not known to go on."""
    end, part = at_end(bad), float(bad.mean())
    goes_on = guarded or bad.sum() > end
    return bool(
        end >= 3
        or (end and (part >= 0.5 or not goes_on))
        or (bad.sum() >= 3 and part > LIMITS.often)
    )


def rose(run: Evidence) -> Iterator[Statement]:
    """Yield that the loss rose at once, so that each one after is far above those before."""
    rows = np.flatnonzero(np.isfinite(run.loss) & (run.part == run.part[-1]))
    losses = run.loss[rows]
    if len(rows) < 4 or (losses <= 0).any() or "loss" in run.settings:  # one of several may rise
        return
    padded = np.concatenate([np.full(LIMITS.before, -np.inf), losses])
    highest = np.lib.stride_tricks.sliding_window_view(padded, LIMITS.before)[:-1].max(axis=1)
    lowest = np.minimum.accumulate(losses[::-1])[::-1]
    seen = len(rows) - np.arange(len(rows))
    shown = np.flatnonzero(
        (lowest > LIMITS.jump * highest) & (np.arange(len(rows)) >= 2) & (seen >= 2)
    )
    if not len(shown):
        return
    at = int(shown[0])
    fell = any(run.points[1][last] >= rows[at - 1] and run.halvings(first, last) >= 2
               for first, last in run.descents)  # fmt: skip
    if fell or min(at, seen[at]) >= 5 or lowest[at] > LIMITS.leap * highest[at]:
        before, after = np.median(losses[max(0, at - LIMITS.before) : at]), np.median(losses[at:])
        yield make(
            run, "loss-rose", rows[[at - 1, -1]], **{"from": f"{before:.3g}", "to": f"{after:.3g}"}
        )


def rate(run: Evidence) -> Iterator[Statement]:
    """Yield what the learning rate tells of a run whose schedule waits while steps are skipped."""
    if run.program != "HF Trainer":
        return
    rows = np.flatnonzero(~np.isnan(run.rate))
    rates, steps = run.rate[rows], run.step[rows]
    if len(rows) >= 3 and (rates == 0).all():
        yield make(run, "rate-stands-still", rows, count=(len(rows), None))
    gaps, rises = np.diff(steps), np.diff(rates)
    if len(rises) < 4 or not run.numbered[rows].all() or (gaps <= 0).any():
        return
    slopes = rises / gaps
    most = slopes.max()
    full = np.flatnonzero(slopes > most * (1 - 1e-4))
    if most <= 0 or len(full) < 3 or not (rises[: full[-1] + 1] >= 0).all():
        return
    if (
        run.settings.get("composed") and (gaps[: full[-1] + 1] != gaps[0]).any()
    ):  # a bar may be a step behind
        return
    lost = (gaps - rises / most)[: full[-1] + 1]
    begin = max(0.0, steps[0] - rates[0] / most - 1)
    whole = np.round(lost)
    if (np.abs(lost - whole) > 0.05).any() or rates[0] / most > steps[0] + 1:
        return
    low = int(whole.sum() + math.floor(begin + 0.05))
    if low:
        yield make(run, "rate-counts", rows[: full[-1] + 2], since=True, skips=(low, None))
