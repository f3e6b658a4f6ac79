"""What an expert would remark on the evidence of a log: what is wrong in it, and what is only worth a note.

Each remark takes a `Maker` and yields statements, or none. What leads to "wrong" is in the log itself; a judgement,
such as that 5 % of skips are too many, is a number here.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.formats import ERRORS, JUDGED
from ampsim.diagnose.gradients import dead_layers, loss, norm, of_a_search, rate, rose, scaled_norm
from ampsim.diagnose.reconstruct import reconstruct
from ampsim.diagnose.statements import LINES, Bound, Maker, Statement
from ampsim.diagnose.wording import counted


def remarks(maker: Maker) -> Iterator[Statement]:
    """Yield what there is to remark."""
    for remark in REMARKS:
        yield from remark(maker)


def _way(evidence: Evidence, first: int, last: int) -> dict[str, Any]:
    values = evidence.points[0]
    return {"from": float(values[first]), "to": float(values[last])}


def _tail(maker: Maker) -> Iterator[Statement]:
    """Yield what the end of the log shows: skips with no step taken after them."""
    evidence, rows = maker.evidence, maker.evidence.tail
    values, at = evidence.points
    weight = evidence.weight(rows)
    if weight < 3 or maker.history.settings.get("cut"):
        return
    inside = np.flatnonzero(at >= rows[0])
    final = float(values[-1]) if len(values) else math.nan
    same = inside[values[inside] == final] if len(inside) else inside
    same = same[1:] if evidence.format.get("counts") == "since" else same  # what its first line counts came before
    stood = evidence.weight(np.intersect1d(rows, at[same])) if len(same) else 0
    never = not (evidence.status == 1).any()
    fallen = evidence.halvings(int(inside[0]), len(values) - 1) if len(inside) else 0.0
    if never and evidence.goes_on(rows):
        return
    if never and fallen >= 1 and final >= 1 and stood < JUDGED.stuck:
        down = math.ceil(math.log2(final / 65504))
        more = f" A gradient of 1 fits below 65504, {counted(down, 'halving')} further down." if down > 0 else ""
        yield maker.make("searching", rows, more=more, **_way(evidence, int(inside[0]), len(values) - 1))
    elif never and final >= 1 and (len(inside) == 1 or (len(inside) and not stood)):
        return  # one scale shows no way, and no skip is known to have come while it stood
    elif never and not len(inside) and of_a_search(maker.evidence, rows, weight):
        return  # where no scale is printed, its search shows no way either
    elif never:
        yield maker.make("no step seen", rows, since=True, bad=(weight, None))
    elif stood >= JUDGED.stuck and final > 0:
        yield maker.make("floor reached", rows, since=True, to=final, bad=(weight, None))
    elif fallen < JUDGED.descent and weight >= JUDGED.long:
        yield maker.make("skipped to the end", rows, since=True, bad=(weight, None))


def _collapse(maker: Maker) -> Iterator[Statement]:
    """Yield that the scale falls to the end of the log, and that nothing after shows a step."""
    evidence = maker.evidence
    values, rows = evidence.points
    if not evidence.descents:
        return
    first, last = evidence.descents[-1]
    depth = evidence.halvings(first, last)
    after = evidence.status[rows[last] :]
    told = evidence.history.sentence[rows[first : last + 1]].all()
    still = len(evidence.status) - 1 - rows[last] > max(2, rows[last] - rows[first])
    stands = still or (told and evidence.goes_on(rows[first : last + 1])) or (after == 1).any()
    search = values[last] >= 1 and (first == 0 or not (evidence.status[: rows[first] + 1] == 1).any())
    rising = (evidence.moves[last:] > 0).any()
    if depth >= JUDGED.descent and not search and not rising and not stands:
        size = round(depth, 2)
        yield maker.make("collapse", np.unique(rows[first : last + 1]), halvings=size, **_way(evidence, first, last))


def _scale(maker: Maker) -> Iterator[Statement]:
    """Yield what the last scales are beyond all use."""
    evidence = maker.evidence
    values, rows = evidence.points
    history = maker.history
    told = history.sentence | ~np.isnan([history.loss, history.norm, history.skipped]).all(axis=0)
    zero = np.flatnonzero((values == 0) & (told[rows] | (len(values) > 1)))  # else it stands in a configuration
    zero = zero[zero > max(np.flatnonzero(values > 0), default=-1)]  # one that comes back was printed with few digits
    if len(zero) and "printed_as_zero" not in history.settings:
        yield maker.make("scale 0", rows[zero], to=0.0)
    elif len(values) and values[-1] < JUDGED.tiny and (values[-1] > 0 or len(values) > 1):
        yield maker.make("tiny scale", rows[-1], to=float(values[-1]), least=2.0**-25 / max(float(values[-1]), 1e-300))
    up = np.flatnonzero(evidence.moves > 0)
    if len(up) and values[-1] >= JUDGED.endless and not (evidence.moves[up[-1] :] < 0).any():
        first = int(np.argmax(values >= JUDGED.endless))
        yield maker.make("endless growth", rows[[first, -1]], to=float(values[-1]), most=f"{65504 / values[-1]:.2g}")


def _low(maker: Maker) -> Iterator[Statement]:
    """Yield that steps overflowed at scales that leave float16's whole range to the gradients."""
    evidence = maker.evidence
    at, scales = evidence.overflows
    sums = evidence.format.get("sums", 1.0)
    low = np.flatnonzero(scales <= JUDGED.low / sums)
    if not len(low) or (len(evidence.points[0]) and evidence.points[0][-1] < JUDGED.tiny):
        return
    rows = evidence.points[1]
    rose = (evidence.moves[np.searchsorted(rows, at[low[-1]]) :] > 0).any()
    over = rose or (evidence.status[at[low[-1]] + 1 :] == 1).sum() >= JUDGED.soon
    low = np.flatnonzero(scales <= JUDGED.lower / sums) if over else low
    if len(low):
        least, told = float(scales[low].min()), evidence.history.sentence[at[low]].all()
        kind = "low scale before" if rose or (told and evidence.goes_on(at[low])) else "low scale"
        yield maker.make(kind, at[low], to=least, most=f"{65504 / least:.4g}")


def _start(maker: Maker) -> Iterator[Statement]:
    """Yield that a run began by looking for its scale, and found it."""
    evidence = maker.evidence
    values, rows = evidence.points
    if evidence.search is None or evidence.means:
        return
    first, last = evidence.search
    numbers = maker.history.step[maker.history.numbered]
    known = len(numbers) > 1 and numbers[0] <= max(20.0, 1.5 * float(np.median(np.abs(np.diff(numbers)))))
    good = np.flatnonzero(evidence.status == 1)
    if known and evidence.halvings(first, last) >= 3 and len(good) and good[-1] >= rows[last] and values[last] >= 1:
        span = np.arange(rows[first], rows[last] + 1)
        proved = sum(evidence.proved(k, k + 1) for k in range(first, last) if evidence.moves[k] < 0)
        yield maker.make("spared", span, since=True, skips=(proved, None), **_way(evidence, first, last))


def share(evidence: Evidence) -> tuple[float, float, int]:
    """Return how many steps were skipped at least since the first scale was found, of how many, and from which row.

    Of 0 steps where the log does not number them.
    """
    history, search = evidence.history, evidence.search
    begin = int(evidence.points[1][search[1]]) if search else 0
    if not len(evidence.points[0]) and (~np.isnan(history.total)).sum() > 1:
        begin = int(np.argmax(evidence.status == 1))  # where no scale is printed, a search ends where a step is taken
    known = np.flatnonzero(~np.isnan(history.total))
    known = known[known >= begin]
    if (np.diff(history.segment[begin:]) != 0).any() or history.unit != "step" or not history.numbered[begin:].any():
        return 0.0, 0.0, begin
    if len(known) == 1 and begin == 0 and evidence.history.step[known[0]] >= 100:  # both are counted from the start
        at = known[0]
        return max(0.0, float(history.total[at]) - JUDGED.search), float(history.step[at]), begin
    if len(known):
        first, last = known[0], known[-1]
        return float(history.total[last] - history.total[first]), float(history.step[last] - history.step[first]), begin
    first, *_, last = 2 * (begin + np.flatnonzero(history.numbered[begin:])).tolist()  # others' steps are only drawn
    skips = float(np.nansum(evidence.skipped[first + 1 : last + 1]))
    steps = float(history.step[last] - history.step[first])
    return skips, steps + skips * bool(evidence.format.get("updates")), begin


def _often(maker: Maker) -> Iterator[Statement]:
    """Yield the share of the steps that were skipped."""
    evidence = maker.evidence
    skips, steps, begin = share(evidence)
    if steps < 100 or skips < 8 or maker.history.settings.get("cut"):
        return
    part = skips / steps
    numbers: dict[str, Bound | str] = {"skips": (skips, None), "steps": f"{steps:.15g}"}
    numbers["percent"] = f"at least {100 * part:.2g}"
    rows = [begin, *(begin + 1 + np.flatnonzero(evidence.skipped[begin + 1 :] > 0))]
    if part > JUDGED.often:
        yield maker.make("skips too often", rows, since=True, **numbers)
    elif part > JUDGED.some and (evidence.moves > 0).any():
        yield maker.make("probing", rows, since=True, **numbers)


def _bursts(maker: Maker) -> Iterator[Statement]:
    """Yield each fall of two halvings or more in the middle of a run."""
    evidence = maker.evidence
    values, rows = evidence.points
    descents = [] if evidence.means else [pair for pair in evidence.descents if pair != evidence.search]
    for first, last in descents[:9]:
        if evidence.halvings(first, last) >= 2 and (evidence.status[rows[last] :] == 1).any() and values[last] > 0:
            yield maker.make("burst", np.arange(rows[first], rows[last] + 1), **_way(evidence, first, last))


def _hidden(maker: Maker) -> Iterator[Statement]:
    extra, rows = maker.evidence.hidden
    if extra and not maker.history.sentence.any():
        told = float(np.nansum(maker.evidence.skipped))
        yield maker.make("hidden skips", rows, since=True, said=told, skips=(extra + int(told), None))


def _said(maker: Maker) -> Iterator[Statement]:
    """Yield what the program says itself."""
    history = maker.history
    for kind, lines in history.says.items():
        if (kind == "told" and maker.evidence.skips[0]) or (kind == "no fp16" and len(maker.evidence.points[0])):
            continue
        numbers: dict[str, Any] = {"count": (len(lines), None)}
        if kind == "error":
            error = next(each for each in ERRORS if each["pattern"].pattern == history.settings["error"])
            numbers = {"text": error["name"] + ".", "cause": error["cause"], "cured": error["cure"]}
        elif kind == "unguarded" and maker.evidence.rises:
            kind = "guard off"
        yield Statement(kind, float(lines[0]), float(lines[-1]), numbers, tuple(lines[:LINES]), "line")
    for step, text in history.alarms:
        row = min(int(np.searchsorted(history.step, step)), len(history.step) - 1)
        yield maker.make("alarm", row, text=text)


def _reconstructed(maker: Maker) -> Iterator[Statement]:
    """Yield the growths that nobody printed, where one rule explains all that was printed."""
    if found := reconstruct(maker.evidence):
        growths, interval, rows = found
        yield maker.make("reconstructed", rows, growths=growths, interval=interval, count=len(rows))


def _runs_of_log(maker: Maker) -> Iterator[Statement]:
    history = maker.history
    back = np.flatnonzero(np.diff(history.segment) > 0) + 1
    if len(back):
        yield maker.make("restarted", back, times=len(back))
    if history.others:
        yield maker.make("engines", [0, -1], streams=len(history.others) + 1)


REMARKS: tuple[Callable[[Maker], Iterator[Statement]], ...] = (
    _said, loss, scaled_norm, dead_layers, _tail, _collapse, _scale, _low, norm, rose, rate, _often, _hidden, _start,
    _bursts, _reconstructed, _runs_of_log,
)  # fmt: skip
"""In the order in which one goes before another."""
