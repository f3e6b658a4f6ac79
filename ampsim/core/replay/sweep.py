"""Many rules over one trace of thresholds: one row per rule."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ampsim.core.machine import Machine, S
from ampsim.core.replay.thresholds import ThresholdIndex, index_thresholds, replay_thresholds

ROW = np.dtype(
    [("skips", np.int64), ("skip_rate", float), ("mean_log2_scale", float), ("scale", float)]
)


def sweep(
    rules: Iterable[Machine[S]],
    thresholds: npt.ArrayLike | ThresholdIndex,
) -> npt.NDArray[np.void]:
    """Return what each rule does over the same trace, in the order of the rules.

    Args:
        rules: of any number; memory grows with rows only.
        thresholds: see `replay_thresholds`; a trace is indexed once.

    Returns:
        A structured array: ``skips`` (int64), ``skip_rate``, ``mean_log2_scale`` and ``scale``, the one in force
        in the end; see `ThresholdReplay`.

    Raises:
        What `replay_thresholds` raises, with a note that says for which rule.
    """
    index = thresholds if isinstance(thresholds, ThresholdIndex) else index_thresholds(thresholds)
    rows = []
    for number, rule in enumerate(rules):
        try:
            done = replay_thresholds(rule, index)
        except Exception as error:
            error.add_note(f"raised for rule {number} (counted from 0)")
            raise
        rows.append((len(done.skipped), done.skip_rate, done.mean_log2_scale, done.state.scale))
    return np.array(rows, ROW)


class FileSweep(NamedTuple):
    """What each rule does over the trace of a file: `rows` as `sweep` returns them."""

    path: Path
    steps: int
    rows: npt.NDArray[np.void]


def sweep_file(rules: Iterable[Machine[S]], path: Path) -> FileSweep:
    """Return what each rule does over the trace of a file, which is mapped and not loaded.

    Args:
        rules: of any number.
        path: a file that `numpy.save` wrote, of shape (steps,), float32 or float64.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no trace.
    """
    try:
        trace = np.load(path, mmap_mode="r")
    except (EOFError, ValueError) as error:
        raise ValueError(f"{path}: expected a file that numpy.save wrote; {error}") from error
    try:
        return FileSweep(path, len(trace), sweep(rules, trace))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
