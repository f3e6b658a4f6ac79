"""Data that `make reproduce` computed here, in `build/here`: comparison with committed data, and
adoption.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from ampsim.runs.record import data_file
from experiments.runner import experiment, previous_data
from experiments.runner.experiment import Experiment, UsageError, stems


def folder() -> Path:
    """Return where the data of this machine's processor is."""
    return experiment.HERE / "data" / "cpu"


class Comparison(NamedTuple):
    """One data file made here, beside the committed one."""

    stem: str
    equal: int  # records, to the last bit
    total: int  # records
    committed: str  # device of the committed data; empty if none has the same settings
    repeats: bool  # whether an equal processor gives equal records: no time is measured

    @property
    def verdict(self) -> str:
        """The result of the comparison, in a few words."""
        if not self.repeats:
            return "measures time"
        if not self.committed:
            return "no committed data"
        return "equal" if self.equal == self.total else "differs"


def compare(folder: Path) -> Iterator[Comparison]:
    """Compare each data file of a folder with the committed one of the same experiment and device.

    Raises:
        UsageError: The folder does not exist.
        ampsim.core.files.DamagedFileError: A file of the folder cannot be read.
    """
    for path in _files(folder):
        asked, (origin, rows) = Experiment(path.stem), data_file.read(path)
        old = previous_data.earlier(
            asked.data("cpu"), origin["config"], origin["inputs_sha256"]
        )
        device = str(old.origin["device"]["name"]) if old else ""
        yield Comparison(
            path.stem, old.equal(rows) if old else 0, len(rows), device, asked.repeats
        )


def _files(folder: Path) -> list[Path]:
    """Return the data files of experiments; no journals."""
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: expected a folder of data files; run `make reproduce` to write build/here/data/cpu"
        )
    return [path for path in sorted(folder.glob("*.jsonl")) if path.stem in stems()]


def table(folder: Path) -> Table:
    """Return the comparison as a table, with the sum in its caption."""
    found = list(compare(folder))
    shown = Table(
        "experiment",
        "records",
        "equal bit for bit",
        "result",
        "device of the committed data",
        title="Records",
    )
    for column in (1, 2):
        shown.columns[column].justify = "right"
    for row in found:
        shown.add_row(
            row.stem, str(row.total), str(row.equal), row.verdict, row.committed
        )
    asked = [row for row in found if row.repeats and row.committed]
    equal = sum(row.equal == row.total for row in asked)
    shown.caption = (
        f"{equal} of the {len(asked)} comparable files have only equal records"
    )
    return shown


def adopt(folder: Path) -> Iterator[str]:
    """Replace committed data with the data computed here; yield a line per file.

    A committed file with equal records and valid provenance is not changed.
    """
    for path in _files(folder):
        target, (origin, rows) = Experiment(path.stem).data("cpu"), data_file.read(path)
        before = previous_data.earlier(
            target, origin["config"], origin["inputs_sha256"]
        )
        written = previous_data.write(target, origin, rows, before)
        yield f"{path.stem}: {'written' if written else 'unchanged'}"
