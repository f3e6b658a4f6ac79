"""Find the runs in a log: a program that is restarted, or several runs one after the other."""

import itertools

import numpy as np

from ampsim.runs.read.history import Floats, History, Series

MOST_RUNS = 6
"""Starts from which on steps that go back are counted within something, such as an epoch."""
MOST_STARTS = 24
_NEAR = 5  # numbers of which a level is the median


def split_runs(history: History) -> list[History]:
    """Return the runs in a log, in order; the log itself if it has one run.

    A run begins where the steps go back to half or less, or where the epochs go back, unless the
    loss goes on from its level.
    """
    candidates = [*history.role("loss"), *history.role("scale"), *history.role("skips")]
    main = max(candidates, key=len, default=None)
    if main is None or history.recorded:
        return [history]
    numbered = np.flatnonzero(np.isfinite(main.steps))
    steps = main.steps[numbered]
    back = np.flatnonzero((steps[1:] <= steps[:-1] / 2) & (steps[:-1] > 0)) + 1
    restarts = set(np.searchsorted(main.lines, history.starts).tolist())
    rows = {*numbered[back].tolist(), *restarts} - {0, len(main)}
    starts, begins = [0], dict[int, bool | None]()
    for row in sorted(rows):
        begins[row] = _begins(main, starts[-1], row) if main.role == "loss" else None
        # A loss that is NaN has no level; only an epoch that starts again tells a new run.
        if row in restarts and np.isnan(main.values[row - 1 : row + 1]).any():
            begins[row] = True
        starts += [row] * (begins[row] is True)
    if False not in begins.values() and len(rows) < MOST_RUNS:
        starts = [
            0,
            *sorted(rows),
        ]  # no loss goes on, so these steps are not those of an epoch
    if len(starts) > MOST_STARTS:
        return [history]  # ranks that print in turn
    edges = [0, *main.lines[starts[1:]].tolist(), history.line_count + 1]
    parts = [history.between(first, last) for first, last in itertools.pairwise(edges)]
    return [part for part in parts if part.series]


def _begins(loss: Series, start: int, row: int) -> bool | None:
    """Return whether a loss begins again at a row; None if it had not fallen, and does not tell."""
    begin, before = (
        _level(loss.values[start : start + _NEAR]),
        _level(loss.values[:row][-_NEAR:]),
    )
    after = _level(loss.values[row : row + _NEAR])
    if before > 4 * max(begin, after):
        return None  # it had diverged
    if before < 0.9 * begin or after < 0.9 * before:
        return bool(after > 1.3 * before)
    return None


def _level(values: Floats) -> float:
    return float(np.median(values))
