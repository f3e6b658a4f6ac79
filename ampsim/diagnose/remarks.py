"""What an expert would remark on the evidence of a log: what is wrong in it, what is only worth a note, what is in it.

Each remark yields statements, or none. What leads to "wrong" is in the log itself; a judgement, such as that 5 % of
skips are too many, is a number of the table.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.formats import ERRORS, LIMITS
from ampsim.diagnose.gradients import dead_layers, loss, norm, of_a_search, rate, rose, scaled_norm
from ampsim.diagnose.history import Floats
from ampsim.diagnose.reconstruct import reconstructed
from ampsim.diagnose.statements import ENDS, LINES, Statement, make
from ampsim.diagnose.wording import counted

DEEPEST = 9  # falls of the scale that are named


def remarks(run: Evidence) -> Iterator[Statement]:
    """Yield what there is to remark."""
    for remark in REMARKS:
        yield from remark(run)


def facts(run: Evidence) -> Iterator[Statement]:
    """Yield what is in the log."""
    others = [Evidence(**vars(other)) for other in run.others]
    lines = (
        [int(line) for one in (run, *others) for line in (np.nanmin(one.line), np.nanmax(one.line))]
        if others
        else []
    )
    known = [run.scale, run.left, run.told, run.skipped, run.total, run.norm, run.loss]
    if not np.isnan(known).all():
        read = make(run, "read", np.arange(len(run.step)))
        yield replace(read, first=min(lines), last=max(lines), unit="line") if lines else read
    values, rows = run.points
    if len(values):
        at = rows[[0, int(values.argmin()), int(values.argmax()), -1]]
        ends, *apart = [_ends(one.points[0]) for one in (run, *others) if len(one.points[0])]
        if all(each == ends for each in apart):
            yield make(run, "scale", at, **ends)
        else:
            extremes = {
                name: most(each[name] for each in (ends, *apart))
                for name, most in (("low", min), ("high", max))
            }
            yield make(run, "scales", at, **extremes)
    if len(values) and run.means:
        yield make(run, "means" if run.settings.get("means") else "no-powers", rows)
    low, high = run.skips
    if low or high == 0:
        yield make(
            run,
            "skips",
            [*ENDS, *np.flatnonzero(run.counted > 0)],
            since=not run.own,
            skips=(low, high),
        )


def _ends(values: Floats) -> dict[str, float]:
    return {
        "from": float(values[0]),
        "to": float(values[-1]),
        "low": float(values.min()),
        "high": float(values.max()),
    }


def _way(run: Evidence, first: int, last: int) -> dict[str, Any]:
    values = run.points[0]
    return {"from": float(values[first]), "to": float(values[last])}


def _tail(run: Evidence) -> Iterator[Statement]:
    """Yield what the end of the log shows: skips with no step taken after them."""
    rows, (values, at) = run.tail, run.points
    bad = run.weight(rows)
    never = not (run.status == 1).any()
    if bad < 3 or run.settings.get("cut") or (never and run.goes_on(rows)):
        return
    numbers = "count" in run.settings or run.format.get("counts") == "since"
    if numbers and np.nanmax(run.skipped[rows], initial=0) > 1 and bad < np.ptp(run.step[rows]):
        return  # numbers that are no flags, of fewer steps than passed
    inside = np.flatnonzero(at >= rows[0])
    final = float(values[-1]) if len(values) else math.nan
    same = inside[values[inside] == final]
    same = (
        same[1:] if run.format.get("counts") == "since" else same
    )  # what its first line counts came before
    stood = run.weight(np.intersect1d(rows, at[same]))
    one = len(inside) and run.part[at[inside[0]]] == run.part[at[-1]]  # start
    fallen = run.halvings(int(inside[0]), -1) if one else 0.0
    if never and fallen >= 1 and final >= run.lowest and stood < LIMITS.stuck:
        down = math.ceil(math.log2(final / 65504))
        more = (
            f" After {counted(down, 'more halving')}, a gradient of 1 stays below 65504."
            if down > 0
            else ""
        )
        yield make(run, "searching", rows, more=more, **_way(run, int(inside[0]), -1))
    elif never and final >= run.lowest and (len({*at[inside]}) == 1 or (len(inside) and not stood)):
        return  # one line with a scale shows no way, and no skip is known to have come while it stood
    elif never and len(inside) and not one and stood < LIMITS.stuck:
        return  # each start may have looked for its scale
    elif never and not len(inside) and of_a_search(run, rows, bad):
        return  # where no scale is printed, its search shows no way either
    elif never:
        yield make(run, "no-step-seen", rows, since=True, bad=(bad, None))
    elif stood >= LIMITS.stuck and final > 0:
        yield make(run, "floor-reached", rows, since=True, to=final, bad=(bad, None))
    elif fallen < LIMITS.descent and bad >= LIMITS.long:
        yield make(run, "skipped-to-the-end", rows, since=True, bad=(bad, None))


def _collapse(run: Evidence) -> Iterator[Statement]:
    """Yield that the scale falls to the end of the log, and that nothing after shows a step."""
    values, rows = run.points
    for first, last in run.descents[-1:]:
        depth, told = run.halvings(first, last), run.sentence[rows[first : last + 1]].all()
        still = len(run.status) - 1 - rows[last] > max(2, rows[last] - rows[first])
        stands = (
            still
            or (run.status[rows[last] :] == 1).any()
            or (told and run.goes_on(rows[first : last + 1]))
        )
        taken = np.flatnonzero(run.status[: rows[first] + 1] == 1)
        rises = (
            run.settings.get("cut") or np.isin(taken, rows[run.moves > 0]).all()
        )  # they alone tell of steps
        hidden = rises and values[first] in (
            values[0],
            values.max(),
        )  # there may be a start that no number shows
        late = told and np.nansum(run.told) <= np.nanmax(
            run.total, initial=0.0
        )  # all may be counted before
        printed = values[run.series[1][rows[run.series[1]] < rows[first]]]
        late |= told and bool(
            (printed[-1:] < values[first] / 2).any()
        )  # or printed, as it is lower there
        search = values[last] >= run.lowest and (
            run.before[first] < 0 or hidden or late or not len(taken)
        )
        if (
            depth >= LIMITS.descent
            and not search
            and not stands
            and not (values[last + 1 :] > values[last]).any()
        ):
            way = _way(run, first, last)
            most = (
                None if values[last] == 0 else round(depth, 2)
            )  # what is printed as 0 may be less
            yield make(
                run,
                "collapse",
                np.unique(rows[first : last + 1]),
                halvings=(round(depth, 2), most),
                **way,
            )


def _scale(run: Evidence) -> Iterator[Statement]:
    """Yield that the last scales are beyond all use."""
    values, rows = run.points
    last = float(values[-1]) if len(values) else math.nan
    zero = np.arange(max(np.flatnonzero(values > 0), default=-1) + 1, len(values))
    if len(zero) and (
        len(zero) < len(values) or run.own or run.sentence.any()
    ):  # a scaler that is off may print 0
        norms = run.norm[rows[zero[0]] + 1 :]  # at a true 0 none is left
        small = not run.own and (run.digit > 0 or ((norms > 0) & np.isfinite(norms)).any())
        before = {"from": float(values[max(zero[0] - 1, 0)])}
        yield make(run, "scale-near-0" if small else "scale-0", rows[zero], **before)
    elif 0 < last <= LIMITS.tiny:
        yield make(run, "tiny-scale", rows[-1], to=last, least=2.0**-25 / max(last, 1e-300))
    up = np.flatnonzero(run.moves > 0)
    if len(up) and last >= LIMITS.endless and not (run.moves[up[-1] :] < 0).any():
        first = int(np.argmax((values >= LIMITS.endless) & (run.part[rows] == run.part[rows[-1]])))
        norms = run.norm[rows[first] :]  # those of float16 are less there, even of 2^40 elements
        other = bool((np.isfinite(norms) & (norms > 2.0**36 / LIMITS.endless)).any())
        yield make(run, "needless-scale" if other else "endless-growth", rows[[first, -1]], to=last)


def _low(run: Evidence) -> Iterator[Statement]:
    """Yield that steps overflowed at scales that leave float16's whole range to the gradients."""
    at, scales = run.overflows
    values, rows = run.points
    low = np.flatnonzero(scales <= LIMITS.low * run.lowest)
    if not len(low) or (len(values) and values[-1] <= LIMITS.tiny):
        return
    rose = (run.moves[rows > at[low[-1]]] > 0).any()
    over = rose or (run.status[at[low[-1]] + 1 :] == 1).sum() >= LIMITS.soon
    low = np.flatnonzero(scales <= LIMITS.lower * run.lowest) if over else low
    if len(low):
        least, told = float(scales[low].min()), run.sentence[at[low]].all()
        once = len(low) == 1 and len(run.status) - 1 > at[low[0]]
        kind = (
            "low-scale-before" if rose or (told and (once or run.goes_on(at[low]))) else "low-scale"
        )
        yield make(run, kind, at[low], to=least, most=f"{65504 / least:.4g}")


def _start(run: Evidence) -> Iterator[Statement]:
    """Yield that a run began by looking for its scale, and found it."""
    if run.search is None or run.means:
        return
    (first, last), (values, rows) = run.search, run.points
    numbers = run.step[run.numbered]
    early = (
        max(20.0, 1.5 * float(np.median(np.abs(np.diff(numbers))))) if len(numbers) > 1 else -1.0
    )
    known = len(numbers) > 1 and max(numbers[0], run.bounds[0, rows[first]]) <= early
    taken = (run.status[rows[last] :] == 1).any()
    if known and run.halvings(first, last) >= 3 and taken and values[last] >= run.lowest:
        span = np.arange(rows[first], rows[last] + 1)
        told = run.sentence[rows[last]]
        if told and np.isnan(
            run.left[rows[last]]
        ):  # the scale that overflowed, and not where the fall ended
            return
        skips = sum(
            run.proved(k) for k in run.series[not told] if first < k <= last and run.moves[k] < 0
        )
        if not told or skips <= np.nansum(
            run.told[span]
        ):  # else there may be a start that no number shows
            yield make(run, "spared", span, skips=(skips, None), **_way(run, first, last))


def share(run: Evidence) -> tuple[float, float, int]:
    """Return how many steps were skipped at least since the first scale was found, of how many, and from which row.

    Of 0 steps where the log does not number them.
    """
    totals, begin = np.flatnonzero(~np.isnan(run.total)), 0
    if run.search:
        begin = int(run.points[1][run.search[1]])
    elif not len(run.points[0]) and len(totals) > 1:
        begin = int(
            np.argmax(run.status == 1)
        )  # where no scale is printed, a search ends where a step is taken
    totals, numbered = totals[totals >= begin], begin + np.flatnonzero(run.numbered[begin:])
    if (np.diff(run.part[begin:]) != 0).any() or run.unit != "step" or not len(numbered):
        return 0.0, 0.0, begin
    if (
        len(totals) == 1 and begin == 0 and run.step[totals[0]] >= 100
    ):  # both are counted from the start
        return (
            max(0.0, float(run.total[totals[0]]) - LIMITS.search),
            float(run.step[totals[0]]),
            begin,
        )
    if len(totals):
        ends = totals[[0, -1]]
        return float(np.diff(run.total[ends])[0]), float(np.diff(run.step[ends])[0]), begin
    first, last = numbered[[0, -1]]  # others' steps are only drawn
    skips, steps = (
        float(run.least(int(first) + 1, int(last) + 1)),
        float(run.step[last] - run.step[first]),
    )
    return skips, steps + skips * bool(run.format.get("updates")), begin


def _often(run: Evidence) -> Iterator[Statement]:
    """Yield the share of the steps that were skipped."""
    skips, steps, begin = share(run)
    if steps < 100 or skips < 8 or run.settings.get("cut"):
        return
    part = skips / steps
    rows = [begin, *(begin + 1 + np.flatnonzero(run.counted[begin + 1 :] > 0))]
    early = [
        way
        for way in run.descents[:1]
        if run.search is None and not (run.moves[: way[1] + 1] > 0).any()
    ]
    early = [way for way in early if (run.status[: run.points[1][way[0]]] == 1).sum() <= 2]
    fall = sum(run.halvings(*way) + 1 for way in early)  # of a search that sentences tell late
    often = skips - fall > LIMITS.often * steps
    if often or (part > LIMITS.some and (run.moves > 0).any()):
        digits = 1 - math.floor(math.log10(100 * part))
        percent = f"at least {math.floor(100 * part * 10**digits) / 10**digits:.2g}"  # two, and not rounded up
        often_as = "skips-too-often" if (run.moves > 0).any() else "skips-and-no-rise"
        kind = often_as if often else "probing"
        yield make(
            run, kind, rows, since=True, skips=(skips, None), steps=f"{steps:.15g}", percent=percent
        )


def _bursts(run: Evidence) -> Iterator[Statement]:
    """Yield the deepest falls of two halvings or more in the middle of a run, in their order."""
    rows, begun = run.points[1], run.search or (-1, -1)  # which is told by itself
    falls = []
    for first, last in [] if run.means else run.descents:
        if first == begun[0]:
            after = run.falls_between(begun[1], last)
            first = int(run.before[after[0]]) if len(after) else last
        if run.halvings(first, last) >= 2 and (run.status[rows[last] :] == 1).any():
            falls.append((first, last))
    named = sorted(falls, key=lambda way: -run.halvings(*way))[:DEEPEST]
    more = f", one of {len(falls)} falls of two halvings or more" if len(falls) > len(named) else ""
    for first, last in sorted(named):
        yield make(
            run,
            "burst",
            np.arange(rows[first], rows[last] + 1),
            more=more,
            **_way(run, first, last),
        )


def _said(run: Evidence) -> Iterator[Statement]:
    """Yield what the program says itself."""
    for kind, lines in run.says.items():
        if (
            kind == "scores"
            or (kind == "told" and run.skips[0])
            or (kind == "no-fp16" and len(run.points[0]))
        ):
            continue
        numbers: dict[str, Any] = {"count": (len(lines), None)}
        if kind == "error":
            error = next(
                each for each in ERRORS if each["pattern"].pattern == run.settings["error"]
            )
            numbers = {"text": error["name"] + ".", "cause": error["cause"], "fix": error["fix"]}
            kind = "warning" if error.get("warning") else kind
        elif kind == "unguarded" and run.rises:
            kind = "guard-off"
        elif kind == "evaluation" and _ends_badly(run):
            kind = "evaluation-and-training"
        yield Statement(
            kind, float(lines[0]), float(lines[-1]), numbers, tuple(lines[:LINES]), "line"
        )
    for step, text in run.alarms:
        row = min(int(np.searchsorted(run.step, step)), len(run.step) - 1)
        yield make(run, "alarm", row, text=text)


def _ends_badly(run: Evidence) -> bool:
    loss, norm = (column[~np.isnan(column)][-1:] for column in (run.loss, run.norm))
    return bool(
        np.isinf(norm).any() or np.isinf(loss).any() or (loss == 0).any() or "whole-run" in run.says
    )


def _runs_of_log(run: Evidence) -> Iterator[Statement]:
    numbered = np.flatnonzero(run.numbered)
    back = np.flatnonzero(np.diff(run.step[numbered]) < 0)
    if len(back):
        yield make(run, "restarted", numbered[[back[0], back[0] + 1]])
    if run.others:
        yield make(run, "engines", ENDS)


REMARKS: tuple[Callable[[Evidence], Iterator[Statement]], ...] = (
    _said, loss, scaled_norm, dead_layers, _tail, _collapse, _scale, _low, norm, rose, rate, _often, _start,
    _bursts, reconstructed, _runs_of_log,
)  # fmt: skip
"""In the order in which one goes before another."""
