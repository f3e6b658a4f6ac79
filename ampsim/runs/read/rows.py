"""Collect named numbers as series: of lines of text, JSON documents, trackers, and recorded runs."""

import math
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ampsim.runs.read.history import Floats, History, Series, StepCounter
from ampsim.runs.read.names import UNRELATED, is_logarithm, role_of

OWN = "ampsim/"
"""Prefix of the names that `ampsim.runs.watch` writes to trackers."""
_COUNTS_ALL = re.compile(rf"^{OWN}|global")
"""Name of the step that is taken if a row has several."""
_FLAGS = {"true": 1.0, "false": 0.0}
_THOUSANDS = re.compile(r",(?=\d{3}\b)")
_NAMED_SCALE = re.compile(r"loss|grad|amp|fp16|scaler|get_scale|^scale$|^ls$")


def as_number(value: object) -> float | None:
    """Return a value as a number: one of JSON, or a text such as 0.5, 65,536, 2^16, nan, or True;
    None of others.
    """
    try:
        return float(value)  # type: ignore[arg-type]  # others raise
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        pass
    if not isinstance(value, str):
        return None
    text = _THOUSANDS.sub("", value.strip().lower()).rstrip(".").removesuffix(".0")
    power = text.removeprefix("2^").removeprefix("2**")
    try:
        number = _FLAGS[text] if text in _FLAGS else float(power)
        return number if power == text else 2.0**number
    except (OverflowError, ValueError):
        return None


def two_to_the(power: float) -> float:
    """Return the scale whose base-2 logarithm a log prints."""
    return 2.0 ** max(-1000.0, min(1000.0, power)) if math.isfinite(power) else power


class RowReader:
    """Adds rows of named numbers to a history; `finish` decides which of them belong to the run."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._series: dict[tuple[str, int], Series] = {}
        self._roles: dict[str, str] = {}
        self.counter = StepCounter()
        self._epoch = -math.inf  # the last one shown

    def series_of(self, name: str, role: str, rank: int = 0) -> Series:
        """Return the series of a name, which is new for a new name."""
        key = name, rank
        if key not in self._series:
            self._series[key] = Series(name, role, rank)
        return self._series[key]

    def may_be_scale(self, name: str) -> bool:
        """Return whether earlier numbers of a name have no role, and may be loss scales."""
        series = self._series.get((name, 0))
        return series is not None and not series.role

    def note_epoch(self, line: int, epoch: float) -> None:
        """Note where the epochs of records start again; NaN for no epoch."""
        if epoch < self._epoch:
            self.history.starts.append(line)
        self._epoch = self._epoch if math.isnan(epoch) else epoch

    def add(self, line: int, row: Mapping[str, object], step: float = math.nan) -> None:
        """Add a row.

        Args:
            line: Line of the row, or its number.
            row: Name -> value. Values that are no numbers are ignored.
            step: Step of the row, unless the row has one of its own.
        """
        numbers, epoch, own = list[tuple[str, str, float]](), math.nan, math.nan
        for name, value in row.items():
            number, role = as_number(value), self._role(name)
            if number is None:
                continue
            if role == "skips" and str(value).lower() in _FLAGS:
                role = "flag"
            if role == "epoch":
                epoch = number
            elif role != "step":
                numbers.append((name.lower().removeprefix(OWN), role, number))
            elif name != "_step" and (math.isnan(own) or _COUNTS_ALL.search(name)):
                own = number  # "_step" is a tracker's own count
        step = step if math.isnan(own) else own
        self.note_epoch(line, epoch)
        step, epoch = self.counter.count(step, epoch)
        for name, role, number in numbers:
            if role or not UNRELATED.search(name):
                value = two_to_the(number) if is_logarithm(name) else number
                self.series_of(name, role).add(line, step, value, epoch)
        self.history.line_count = max(self.history.line_count, line)

    def _role(self, name: str) -> str:
        if name not in self._roles:
            plain = name.lower().removeprefix(OWN)
            low = plain.replace("_", " ").replace(".", "/")
            role = role_of(plain) or role_of(low)
            if not role and (last := role_of(low.rpartition("/")[2])) != "norm":
                role = last  # no norm, such as that in weights/norm
            self._roles[name] = role
        return self._roles[name]

    def finish(self) -> History:
        """Return the history: series with a role, by name or by value."""
        kept = list[Series]()
        for series in self._series.values():
            if not series.role and is_dynamic_scale(series.values):
                series.role = "scale"
            elif not series.role and lost_from(series.values):
                series.role = "other"
            if series.role and len(series):
                kept.append(_without_repeats(series))
        losses = [each for each in kept if each.role == "loss"]
        for series in kept:
            if series.role == "mean loss":
                # It counts if no loss is printed, or if those it is made of were NaN.
                counts = not losses or _is_spoiled(np.isnan(series.values))
                series.role = "loss" if counts else ""
        begin = min((int(loss.lines[0]) for loss in losses), default=0)
        self.history.series = [
            each for each in kept if each.role and not _is_other(each, begin)
        ]
        return self.history


def _without_repeats(series: Series) -> Series:
    """Return a series without what is printed twice, and a scale without the numbers of a
    configuration.

    A second log handler repeats a number with its step. A configuration has no step where most
    other numbers have one.
    """
    steps, values = series.steps, series.values
    same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    kept = np.append(True, ~same | (steps[1:] != steps[:-1]))
    has_step = np.isfinite(steps)
    if series.role == "scale" and has_step.mean() >= 0.5:
        kept &= has_step
    return series if kept.all() else series.part(kept)


def _is_other(series: Series, begin: int) -> bool:
    """Return whether numbers that are named as a scale are none: a scale of images, or a setting of
    -1 or 0.

    Args:
        series: The numbers.
        begin: Line of the first loss; a configuration is printed before it.
    """
    finite, has_steps = series.finite, np.isfinite(series.steps).any()
    if series.role != "scale":
        return False
    if series.lines[-1] < begin and not has_steps:
        return True
    if not len(finite):
        return len(series) < 3
    is_setting = len(finite) == 1 or (len(finite) <= 4 and not has_steps)
    if (finite < 0).any() or (is_setting and not finite.any()):
        return True  # -1 and 0 ask for a dynamic scale
    if _NAMED_SCALE.search(series.name):
        return False
    return bool(are_powers_of_two(finite).mean() < 0.8 or finite.max() < 2)


def _is_spoiled(is_nan: npt.NDArray[np.bool_]) -> bool:
    """Return whether means are NaN at their end, or three in a row after a finite one.

    The first means may be NaN because nothing is in them.
    """
    later = is_nan[np.argmin(is_nan) :]
    in_a_row = later[:-2] & later[1:-1] & later[2:]
    return bool(is_nan[-1] or in_a_row.any())


def lost_from(values: Floats) -> bool:
    """Return whether numbers were finite and are NaN at the end."""
    return bool(np.isfinite(values).any() and np.isnan(values[-1:]).any())


def are_powers_of_two(values: Floats) -> Floats:
    """Return 1 for each number that is a power of two, else 0."""
    mantissas, _ = np.frexp(values)
    return np.asarray(mantissas == 0.5, float)


def is_dynamic_scale(values: Floats) -> bool:
    """Return whether numbers behave as a dynamic loss scale: powers of two that double or halve."""
    positive = np.flatnonzero(values)
    values = (
        values[: positive[-1] + 1] if len(positive) else values
    )  # 0 after a collapse
    if len(values) < 4 or values.max() < 256 or not are_powers_of_two(values).all():
        return False
    moves = np.diff(np.log2(values))
    rises, falls = (moves > 0).mean(), (moves < 0).mean()
    far = moves > 1
    if not moves.any() or far.sum() > len(moves) // 10 or moves.max() > 8:
        return False
    # A scale rises seldom; it falls often only while it searches its first value.
    return bool(rises <= 0.34 and (falls <= 0.34 or rises == 0))
