"""Data that `make reproduce` computed here, in `build/here`: comparison with committed data, and
adoption.
"""

from collections.abc import Iterator
from pathlib import Path

from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from experiments.runner import experiment, previous_data
from experiments.runner.experiment import Experiment, UsageError, stems
from experiments.runner.previous_data import Earlier


def folder() -> Path:
    """Return where the data of this machine's processor is."""
    return experiment.HERE / "data" / "cpu"


def compare(folder: Path) -> Iterator[str]:
    """Yield how many records of each file equal the committed ones, and how many files are equal.

    Raises:
        UsageError: The folder does not exist.
        ampsim.core.files.DamagedFileError: A file of the folder cannot be read.
    """
    comparable = equal = 0
    for made, _, rows, before in _files(folder):
        if not made.repeats:
            yield f"{made.stem}: measures time"
        elif before is None:
            yield f"{made.stem}: no committed data with these settings"
        else:
            comparable += 1
            equal += before.equal(rows) == len(rows)
            yield f"{made.stem}: {before.compare(rows)}"
    yield f"{equal} of the {comparable} comparable files have only equal records"


def adopt(folder: Path) -> Iterator[str]:
    """Replace committed data with the data computed here; yield a line per file.

    A committed file with equal records and valid provenance is not changed.
    """
    for made, origin, rows, before in _files(folder):
        written = previous_data.write(made.data("cpu"), origin, rows, before)
        yield f"{made.stem}: {'written' if written else 'unchanged'}"


def _files(
    folder: Path,
) -> Iterator[tuple[Experiment, Record, list[Record], Earlier | None]]:
    """Yield each experiment with data in a folder, that data, and the committed data."""
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: expected a folder of data files; run `make reproduce` to write build/here/data/cpu"
        )
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem in stems():
            made, (origin, rows) = Experiment(path.stem), data_file.read(path)
            settings = origin["config"], origin["inputs_sha256"]
            before = previous_data.earlier(made.data("cpu"), *settings)
            yield made, origin, list(rows), before
