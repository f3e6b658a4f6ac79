"""Growths that DeepSpeed does not print, where one rule explains every scale that it does.

Between two overflows, d steps apart, the scale doubles floor((d - 2) / W) times, W being the growth interval. The log
says how often, and between which steps each overflow lies, so that W lies in an interval; a W of it, and steps at which
the overflows may have been, are then given to the reference machine, which has to print what the log prints.
"""

import math
from collections.abc import Iterator

import numpy as np

from ampsim.core import dialects
from ampsim.core.machine import init, update
from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.statements import Statement, make

LEAST, MOST = 4, 20_000  # overflows that are explained, and steps that are replayed
DIALECT = "deepspeed.DynamicLossScaler"


def reconstructed(run: Evidence) -> Iterator[Statement]:
    """Yield the growths that nobody printed, where one rule explains all that was printed."""
    rows = np.flatnonzero(~np.isnan(run.scale) & ~np.isnan(run.left) & (run.told == 1))
    low, high = np.maximum(run.bounds[0, rows], 0.0), run.bounds[1, rows]
    counted = run.total[~np.isnan(run.total)]
    if run.program != "DeepSpeed" or len(rows) < LEAST or run.segment[-1] or run.others:
        return
    told = run.told[~np.isnan(run.scale) & ~np.isnan(run.left)]
    if (
        not len(counted) or counted[-1] != len(rows) or not high[-1] <= MOST or (told == 0).any()
    ):  # nor
        return
    before, left = run.scale[rows], run.left[rows]
    grown = np.round(np.log2(before[1:] / left[:-1]), 6)
    if not np.isfinite(high).all() or (grown < 0).any() or (grown % 1).any() or not grown.sum() > 0:
        return
    nearest, farthest = np.maximum(low[1:] - high[:-1], 1.0), high[1:] - low[:-1] + 1
    least = max(1.0, float((np.floor((nearest - 2) / (grown + 1)) + 1).max()))
    most = float(np.floor((farthest - 2)[grown > 0] / grown[grown > 0]).min())
    for interval in np.unique(np.linspace(most, least, 12).astype(int)) if least <= most else ():
        steps = _placed(low, high, grown, int(interval))
        if steps and _prints(steps, before, left, int(interval)):
            growths = int(grown.sum())
            yield make(
                run, "reconstructed", rows, growths=growths, least=least, most=most, count=len(rows)
            )
            return


def _placed(low: np.ndarray, high: np.ndarray, grown: np.ndarray, interval: int) -> list[int]:
    """Return steps for the overflows, each in its bounds and with its growths since the last; none where none fit."""
    steps = [int(low[0])]
    for first, last, growths in zip(low[1:], high[1:], grown, strict=True):
        step = int(max(first, steps[-1] + 1, steps[-1] + growths * interval + 2 * (growths > 0)))
        if step > last + 1 or max(0, step - 2 - steps[-1]) // interval != growths:
            return []
        steps.append(step)
    return steps


def _prints(steps: list[int], before: np.ndarray, left: np.ndarray, interval: int) -> bool:
    """Return whether the reference machine has the printed scales before and after each overflow."""
    held = bool((before == left).any())  # a hysteresis
    rule = dialects.get(
        DIALECT,
        init_scale=float(before[0]),
        growth_interval=interval,
        raise_error_at_min_scale=False,
        delayed_shift=1 + held,
    )
    state, at = init(rule), dict(zip(steps, zip(before, left, strict=True), strict=True))
    for step in range(steps[0], steps[-1] + 1):
        scale, state = state.scale, update(rule, state, step in at)
        if step in at and not (
            math.isclose(scale, at[step][0]) and math.isclose(state.scale, at[step][1])
        ):
            return False
    return True
