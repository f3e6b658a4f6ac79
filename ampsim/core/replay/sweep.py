"""Replay of many rules over one trace of overflow thresholds."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ampsim.core.machine import Machine, S
from ampsim.core.replay.thresholds import (
    ThresholdIndex,
    index_thresholds,
    replay_thresholds,
)

ROW = np.dtype(
    [
        ("skips", np.int64),
        ("skip_rate", float),
        ("mean_log2_scale", float),
        ("scale", float),
    ]
)


def sweep(
    rules: Iterable[Machine[S]],
    thresholds: npt.ArrayLike | ThresholdIndex,
) -> npt.NDArray[np.void]:
    """Replay each rule over the same trace.

    Args:
        rules: Rules or policies, any number.
        thresholds: Overflow thresholds, see `replay_thresholds`; a trace is indexed once.

    Returns:
        Structured array of shape ``(rules,)``, in the order of the rules: ``skips`` (int64),
        ``skip_rate``, ``mean_log2_scale``, and ``scale``, the last loss scale; see
        `ThresholdReplay`.

    Raises:
        Exception: What `replay_thresholds` raises, with a note that names the rule.
    """
    index = (
        thresholds
        if isinstance(thresholds, ThresholdIndex)
        else index_thresholds(thresholds)
    )
    rows = []
    for number, rule in enumerate(rules):
        try:
            done = replay_thresholds(rule, index)
        except Exception as error:
            error.add_note(f"raised for rule {number} (counted from 0)")
            raise
        rows.append(
            (len(done.skipped), done.skip_rate, done.mean_log2_scale, done.state.scale)
        )
    return np.array(rows, ROW)


def load_trace(path: Path) -> npt.NDArray[np.floating]:
    """Return the overflow thresholds of a file, memory-mapped.

    Args:
        path: File written by `numpy.save`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If `numpy.save` did not write the file.
    """
    try:
        trace: npt.NDArray[np.floating] = np.load(path, mmap_mode="r")
    except (EOFError, ValueError) as error:
        raise ValueError(
            f"{path}: not an array of overflow thresholds, one per step; "
            "numpy.save one of ampsim.probe.overflow_thresholds, or 65504 / max(abs(gradient)), as in "
            "docs/how-to/settings.md"
        ) from error
    return trace
