"""Find the runs in a log: a program that is restarted, or several runs one after the other."""

import itertools
import math

import numpy as np

from ampsim.runs.read.history import History

MOST_RUNS = 6


def split_runs(history: History) -> list[History]:
    """Return the runs in a log, in order; the log itself if it has one run.

    A run begins where the steps go back to half or less. Steps that go back more often are counted within something
    else, for example an epoch.
    """
    candidates = [*history.role("loss"), *history.role("scale"), *history.role("skips")]
    main = max(candidates, key=len, default=None)
    if main is None or history.recorded:
        return [history]
    numbered = np.flatnonzero(np.isfinite(main.steps))
    steps = main.steps[numbered]
    back = np.flatnonzero(steps[1:] <= steps[:-1] / 2) + 1
    cuts = [int(main.lines[numbered[at]]) for at in back]
    if not cuts or len(cuts) >= MOST_RUNS:
        return [history]
    edges = [0, *cuts, math.inf]
    parts = [
        history.between(int(first), int(min(last, history.line_count + 1)))
        for first, last in itertools.pairwise(edges)
    ]
    return [part for part in parts if part.series or part.events]
