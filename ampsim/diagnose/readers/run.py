"""The file of a run that `ampsim.runs.watch` recorded."""

from pathlib import Path

from ampsim.diagnose.history import EVENTS, History, HistoryBuilder, Sample
from ampsim.diagnose.readers.fields import as_number
from ampsim.runs.record.run_file import numbered, read_run, unpack_counts

SAMPLES = 512  # samples of the exponents that are kept; of more, every second is left out, so that memory has a bound

COLUMNS = {"scale": "loss_scale", "skipped": "skipped", "norm": "grad_norm", "loss": "loss"}


def read_own(path: Path) -> History:
    """Return the history of a watched run.

    Raises:
        ValueError: another file; DamagedFileError: a line that is no record.
    """
    builder = HistoryBuilder(str(path), "ampsim.runs.watch", settings=read_run(path))
    if builder.settings.get("scaler", "") is None:
        builder.notes.append(
            "watch() received no scaler. If the run has one, the skipped steps are unknown."
        )
    every = 1
    for number, (line, record) in enumerate(numbered(path)):
        step = record["step"]
        values = {column: as_number(record.get(name)) for column, name in COLUMNS.items()}
        builder.add(float(step), {**values, "line": line})
        if record.get("nonfinite") and len(builder.bad) < EVENTS:
            builder.bad[step] = record["nonfinite"]
        if record.get("warning") and len(builder.alarms) < EVENTS:
            builder.alarms.append((step, record["warning"]))
        if record.get("exponent_histograms") and number % every == 0:
            counts = {
                name: unpack_counts(packed)
                for name, packed in record["exponent_histograms"].items()
            }
            builder.samples.append(Sample(step, counts))
            if len(builder.samples) == SAMPLES:
                builder.samples[:] = builder.samples[::2]
                every *= 2
    return builder.finish()
