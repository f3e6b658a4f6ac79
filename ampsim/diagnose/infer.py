"""What a log leaves unsaid: skips between two lines, the factors and the interval of the rule, what fits it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ampsim.core import dialects
from ampsim.core.replay.fold import replay
from ampsim.diagnose.history import Change, Floats, History

FITTED = 3_000
"""Steps on which dialects are tried; later ones seldom tell more of them apart."""
TOLERANCE = 1e-4
"""Relative error of a scale that was printed with five digits."""


LIKELY_BACKOFF = 0.4
"""A fall further than this between two lines of a log is taken for several backoffs."""
LEAST_BACKOFF = 1 / 64
"""The same for lines whose steps follow on each other, which may be counted otherwise than the scaler's."""


class Skips(NamedTuple):
    """The skips between two entries that a fall of the scale proves."""

    change: Change
    least: int
    """Backoffs that it takes from the old scale to the new one; growth in between, or hysteresis, means more."""
    said: float
    """Skips that the log reports for these steps; NaN if it says nothing."""

    @property
    def hidden(self) -> bool:
        """Whether the log reports fewer skips than there were."""
        return self.said < self.least


class Row(NamedTuple):
    """Skips on record, or proved."""

    first: int
    """The steps among which they are."""
    last: int
    skips: int
    scale: float
    """Before them; NaN if it is not known."""


@dataclass(frozen=True)
class Inferred:
    """The rule behind a history, as far as the history shows it."""

    growth_factor: float | None
    backoff_factor: float | None
    growth_interval: int | None
    """Steps between two growths with no skip in between, the fewest seen."""
    hysteresis: bool
    """Whether a step was skipped without a change of the scale above its lowest value."""
    skips: list[Skips]
    """One for each fall."""

    @property
    def least_skips(self) -> int:
        """Skips that the falls of the scale prove."""
        return sum(each.least for each in self.skips)


def infer(history: History) -> Inferred:
    """Return what the scale's changes say of the rule."""
    ratios = [change.new / change.old for change in history.changes if 0 < change.old < math.inf]
    growth = min((ratio for ratio in ratios if 1 + TOLERANCE < ratio < math.inf), default=None)
    backoff = max((ratio for ratio in ratios if 0 < ratio < 0.99), default=None)
    falls = [change for change in history.changes if change.fell]
    apart = all(change.step - change.after > 1 for change in falls)
    if backoff is not None and backoff < (LIKELY_BACKOFF if apart else LEAST_BACKOFF):
        backoff = None  # several skips lie between the lines of the log
    skips = [
        Skips(change, _proved(change, backoffs(change.old, change.new, backoff or 0.5)), _said(history, change))
        for change in falls
    ]
    interval = _interval(history, growth)
    return Inferred(growth, backoff, interval, _hysteresis(history), skips)


def ledger(history: History) -> tuple[list[Row], bool]:
    """Return the skips that were written down, else those that the falls of the scale prove; whether it is these."""
    at = np.flatnonzero(history.skipped > 0)
    before = np.concatenate([[history.step[0] - 1], history.step[:-1]])
    rows = [Row(int(before[i]) + 1, int(history.step[i]), int(history.skipped[i]), history.scale[i].item()) for i in at]
    inferred = not rows
    if inferred:
        rows = [Row(change.after, change.step, least, change.old) for change, least, _ in infer(history).skips]
    return rows, inferred


def backoffs(old: float, new: float, factor: float = 0.5) -> int:
    """Return how many backoffs lead from one scale to a lower one.

    >>> backoffs(131072.0, 5.29e-23)
    91

    Args:
        old: the scale before.
        new: the scale after, as it was printed; 0 counts as the first below float32's smallest number.
        factor: what a backoff multiplies the scale by, below 1.
    """
    return max(1, round(Change(0, 1, old, new).halvings / -math.log2(factor)))


def _proved(change: Change, least: int) -> int:
    """Return the backoffs of a fall: one to a scale that is printed as 0 may be small, and takes a step each."""
    return min(least, max(1, change.step - change.after)) if change.new == 0 else least


def _said(history: History, change: Change) -> float:
    # Some programs print the scale that a step had, others the one that it left: both ends may belong to the fall.
    inside = slice(*np.searchsorted(history.step, [change.after, change.step + 1]))
    said = history.skipped[inside]
    return float(np.nansum(said)) if len(said) and not np.isnan(said).all() else math.nan


def _interval(history: History, growth: float | None) -> int | None:
    """Return the steps between two growths of one factor with nothing else in between."""
    if growth is None:
        return None
    found = [
        second.step - first.step
        for first, second in zip(history.changes, history.changes[1:], strict=False)
        if first.new > first.old > 0 < second.old and math.isclose(second.new / second.old, growth, rel_tol=TOLERANCE)
    ]
    return min(found, default=None)


def _hysteresis(history: History) -> bool:
    """Return whether a step was skipped at a scale that stayed, and fell later, so that it was no floor."""
    if history.settings.get("hysteresis") is True:
        return True
    if not history.every_step or len(history.step) < 2 or np.isnan(history.scale).all():
        return False
    stayed = (history.skipped[:-1] > 0) & (history.scale[1:] == history.scale[:-1])
    return bool((stayed & (history.scale[:-1] > np.nanmin(history.scale))).any())


def fitting_dialects(history: History) -> list[str]:
    """Return the dialects that make this very trajectory of these skips, torch's first; needs every step.

    Each is tried with its defaults, but for the first scale, and the interval and factors that were inferred.
    """
    if not history.every_step or len(history.step) < 2 or np.isnan(history.scale).any():
        return []
    known, seen = infer(history), history.scale[1:FITTED]
    found_inf = history.skipped[: len(seen)] > 0
    found = []
    for name in dialects.names():
        scales = _replayed(name, _parameters(name, history, known), found_inf)
        if scales is not None and np.allclose(scales, seen, rtol=TOLERANCE, atol=0.0):
            found.append(name)
    return sorted(found, key=lambda name: not name.startswith("torch."))


def _replayed(name: str, parameters: dict[str, float], found_inf: npt.NDArray[np.bool_]) -> Floats | None:
    """Return the scales of a dialect; None where it has no such parameter, or ends a run that went on."""
    try:
        return replay(dialects.get(name, **parameters), found_inf)
    except Exception:  # DeepSpeed raises no other class
        return None


def _parameters(name: str, history: History, known: Inferred) -> dict[str, float]:
    dialect = dialects.ALL[name]
    late = "interval" in dialect.parameters and dialect(interval=7).growth_interval == 8  # flax grows a step after it
    values = {
        "init": float(history.scale[0]),
        "interval": known.growth_interval - late if known.growth_interval else history.settings.get("growth_interval"),
        "growth": known.growth_factor,
        "backoff": known.backoff_factor,
    }
    return {key: value for key, value in values.items() if key in dialect.parameters and isinstance(value, int | float)}
