"""Load a run file or an experiment's data as a data frame."""

import importlib
import sys
from pathlib import Path
from typing import Any

from ampsim.core.files import DamagedFileError
from ampsim.core.json_lines import AnyPath, Record, read_objects
from ampsim.runs.record.data_file import read
from ampsim.runs.record.run_file import read_run, records

_LIBRARIES = "pandas", "polars"


def load(path: AnyPath) -> Any:
    """Load a run file, or the data of an experiment, as a data frame.

    For example::

        frame = ampsim.load("run.jsonl")
        frame.plot("step", "loss_scale", logy=True)
        frame.attrs["provenance"]["started"]

    A row is one step of a run, or one unit of an experiment. Columns with numbers have numeric
    dtypes, and inf is a number. The members of an object ``settings`` become columns such as
    ``settings.lr``. Lists and other objects, such as ``exponent_histograms``, stay as they are;
    `ampsim.runs.record.run_file.unpack_counts` reads a histogram. polars turns a column of texts
    and numbers into text. Of steps that were recorded again after a restart, the last record
    counts.

    Args:
        path: File of a watched run, or ``experiments/data/<device>/<stem>.jsonl``; plain or
            compressed by gzip.

    Returns:
        A data frame of the library that is imported already, else of pandas, else of polars. A
        pandas data frame has the header of the file in ``frame.attrs["provenance"]``. polars has no
        place for it: use `ampsim.runs.read_run` or `ampsim.runs.read_provenance`.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If the file is neither of the two kinds, or is damaged.
        ModuleNotFoundError: If neither pandas nor polars is installed.
    """
    module = _import()
    provenance, rows = _rows(Path(path))
    if module.__name__ == "polars":
        return module.DataFrame(rows, infer_schema_length=None, strict=False)
    frame = module.DataFrame(rows)
    frame.attrs["provenance"] = provenance
    return frame


def _import() -> Any:
    for name in sorted(_LIBRARIES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ModuleNotFoundError(
        "no module named 'pandas' or 'polars'; pip install pandas"
    )


def _rows(path: Path) -> tuple[Record, list[Record]]:
    """Return the header and the rows of a file of either kind."""
    _, first = next(read_objects(path), (0, {}))
    if "provenance" in first:
        provenance, units = read(path)
        return provenance, [_flat(unit) for unit in units]
    if "run" in first:
        steps = {record["step"]: record for record in records(path)}
        return read_run(path), [steps[step] for step in sorted(steps)]
    raise DamagedFileError(
        path,
        1,
        f"the first record has the keys {sorted(first)}",
        'the file of a watched run {"run": ...}, or the data of an experiment {"provenance": ...}',
        "to diagnose a training log use `ampsim explain`",
    )


def _flat(unit: Record) -> Record:
    settings = unit.get("settings")
    if not isinstance(settings, dict):
        return unit
    others = {name: value for name, value in unit.items() if name != "settings"}
    return others | {f"settings.{name}": value for name, value in settings.items()}
