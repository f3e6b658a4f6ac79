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

    A run begins where the steps go back to half or less, or where the epochs, the first line of the
    log, or the header of a recorded run come again, unless the loss goes on from its level.
    """
    candidates = [*history.role("loss"), *history.role("scale"), *history.role("skips")]
    main = max(candidates, key=len, default=None)
    if main is None:
        return [history]
    # A recorded run that was resumed has headers, too; only its loss tells it from a new run.
    if history.recorded and not (history.starts and main.role == "loss"):
        return [history]
    starts = [0, *_starts(main, history.starts)]
    if len(starts) > MOST_STARTS:
        return [history]  # ranks that print in turn
    first_lines = main.lines[starts[1:]].tolist()
    edges = [0, *first_lines, history.line_count + 1]
    parts = [history.between(first, last) for first, last in itertools.pairwise(edges)]
    return [part for part in parts if part.series]


def _starts(main: Series, marks: list[int]) -> list[int]:
    """Return the rows of a series at which runs begin, without the first one.

    Args:
        main: The longest series.
        marks: Lines at which something else than the steps starts again.
    """
    restarts = set(np.searchsorted(main.lines, marks).tolist())
    rows = sorted({*_steps_back(main), *restarts} - {0, len(main)})
    starts, goes_on, start = list[int](), False, 0
    for row in rows:
        begins = _begins(main, start, row) if main.role == "loss" else None
        # A loss that is NaN has no level; only a mark tells a new run.
        if row in restarts and np.isnan(main.values[row - 1 : row + 1]).any():
            begins = True
        goes_on = goes_on or begins is False
        if begins:
            start = row
            starts.append(row)
    # If no loss goes on, these steps are not those of an epoch.
    return starts if goes_on or len(rows) >= MOST_RUNS else rows


def _steps_back(main: Series) -> list[int]:
    """Return the rows at which the steps go back to half or less."""
    numbered = np.flatnonzero(np.isfinite(main.steps))
    steps = main.steps[numbered]
    before, after = steps[:-1], steps[1:]
    back = np.flatnonzero((after <= before / 2) & (before > 0))
    return [int(row) for row in numbered[back + 1]]


def _begins(loss: Series, start: int, row: int) -> bool | None:
    """Return whether a loss begins again at a row; None if it had not fallen, and does not tell."""
    values = loss.values
    begin = _level(values[start : start + _NEAR])
    before = _level(values[:row][-_NEAR:])
    after = _level(values[row : row + _NEAR])
    if before > 4 * max(begin, after):
        return None  # it had diverged
    if before < 0.9 * begin or after < 0.9 * before:
        return after > 1.3 * before
    return None


def _level(values: Floats) -> float:
    return float(np.median(values))
