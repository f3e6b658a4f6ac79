"""Read the file of a run that `ampsim.runs.watch` recorded."""

from pathlib import Path

import numpy as np

from ampsim.core.files import DamagedFileError
from ampsim.core.json_lines import Record
from ampsim.runs.read.history import MOST_EVENTS, MOST_SAMPLES, History, Sample
from ampsim.runs.read.rows import RowReader
from ampsim.runs.record.run_file import (
    is_header,
    numbered,
    read_run,
    unpack_counts,
)

COLUMNS = ("loss_scale", "skipped", "grad_norm", "loss")


def read_recorded(path: Path) -> History:
    """Return the history of a recorded run.

    Args:
        path: File that `watch` wrote.

    Returns:
        The history, with a record for each step.

    Raises:
        DamagedFileError: If a line is no record.
        ValueError: If the file is not the file of a recorded run.
    """
    history = History(str(path), settings=dict(read_run(path)), recorded=True)
    reader, every = RowReader(history), 1
    if history.settings.get("scaler", "") is None:
        history.notes.append(
            "watch() received no scaler. If the run has one, the skipped steps are unknown."
        )
    number = 0
    for line, record in numbered(path):
        if is_header(record):
            history.starts.append(line)
            if isinstance(record["run"], dict):
                history.settings |= record["run"]
            continue
        try:
            _add(history, record, with_sample=number % every == 0)
        except (AttributeError, TypeError, ValueError) as error:
            expected = "a record of `ampsim.runs.watch`"
            raise DamagedFileError(path, line, f"{error}"[:200], expected) from error
        given = {name: record[name] for name in COLUMNS if record.get(name) is not None}
        reader.add(line, given, float(record["step"]))
        number += 1
        if len(history.samples) == MOST_SAMPLES:
            history.samples[:] = history.samples[::2]
            every *= 2
    reader.finish()
    forget_repeated_steps(history)
    return history


def _add(history: History, record: Record, *, with_sample: bool) -> None:
    """Add what of a record is no number."""
    step = record["step"]
    if record.get("nonfinite") and len(history.nonfinite) < MOST_EVENTS:
        history.nonfinite[step] = dict(record["nonfinite"])
    if record.get("warning") and len(history.warnings) < MOST_EVENTS:
        history.warnings.append((step, str(record["warning"])))
    if record.get("exponent_histograms") and with_sample:
        packed = record["exponent_histograms"].items()
        counts = {name: unpack_counts(histogram) for name, histogram in packed}
        history.samples.append(Sample(step, counts))


def forget_repeated_steps(history: History) -> None:
    """Keep the last record of each step: a run that resumes from a checkpoint repeats steps."""
    for at, series in enumerate(history.series):
        if not series.steps_increase:
            # Going backwards, a row stays if its step is below every step after it.
            later = np.minimum.accumulate(series.steps[::-1])[::-1]
            later = np.append(later[1:], np.inf)
            history.series[at] = series.part(series.steps < later)
    last = max(
        (series.steps[-1] for series in history.series if len(series)), default=-1
    )
    history.warnings = [each for each in history.warnings if each[0] <= last]
