"""Data from before a run: whether the new records are equal, and whether the file can stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsim.core import json_lines
from ampsim.core.files import DamagedFileError
from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from experiments.runner.provenance import IDENTITY


@dataclass(frozen=True)
class Earlier:
    """The content of a data file before a run: its provenance and its records."""

    origin: Record
    rows: Sequence[Record]

    @property
    def commit(self) -> str:
        """The commit that made it, in twelve digits."""
        return (self.origin.get("commit") or "no commit")[:12]

    def equal(self, rows: Sequence[Record]) -> int:
        """Return how many records are equal bit for bit; `settings` are not compared."""
        return sum(
            _results(a) == _results(b) for a, b in zip(self.rows, rows, strict=False)
        )

    def compare(self, rows: Sequence[Record]) -> str:
        """Return in words how many records are equal to the earlier ones."""
        same = self.equal(rows)
        if same == len(self.rows) == len(rows):
            return f"equal to the data of {self.commit} bit for bit"
        device = self.origin.get("device", {}).get("name", "an unknown device")
        return f"differs: {same} of {len(self.rows)} records equal those of {self.commit}, computed on {device}"

    def keeps(self, origin: Record, rows: Sequence[Record]) -> bool:
        """Return whether the file can stay: its provenance is also true of the new run.

        The records, the source, and the versions of shared packages are equal. A commit with
        changes is replaced by one without.
        """
        then, now = self.origin.get("versions", {}), origin["versions"]
        packages = then.keys() & now.keys() - {
            "python"
        }  # any Python may give the same; so may an unused package
        return (
            json_lines.encode(self.rows) == json_lines.encode(rows)
            and all(then[name] == now[name] for name in packages)
            and (not self.origin.get("dirty") or bool(origin["dirty"]))
            and self.origin.get("source_sha256") == origin["source_sha256"]
        )


def earlier(
    path: Path, config: Record, inputs: Mapping[str, str], *, replaced: bool = True
) -> Earlier | None:
    """Return the content of a file, if it exists and has the same settings and inputs.

    Raises:
        ampsim.core.files.DamagedFileError: The file cannot be read and is not to be `replaced`.
    """
    try:
        origin, rows = data_file.read(path)
    except FileNotFoundError:
        return None
    except DamagedFileError:
        if replaced:
            return None
        raise
    same = origin.get("config") == config and origin.get("inputs_sha256") == inputs
    return Earlier(origin, rows) if same else None


def is_of(path: Path, origin: Record) -> bool:
    """Return whether `path` is a finished file of the run that `origin` describes."""
    if not path.exists():
        return False
    there = data_file.read_provenance(path)
    return all(there.get(name) == origin[name] for name in IDENTITY)


def write(
    path: Path, origin: Record, rows: Sequence[Record], before: Earlier | None
) -> bool:
    """Write a finished file unless the existing one is equal and valid; return whether it was
    written.

    Args:
        path: The file.
        origin: The provenance.
        rows: The records.
        before: The existing content, if it may stay when it is equal.
    """
    written = before is None or not before.keeps(origin, rows)
    if written:
        data_file.write(path, origin, rows)
    return written


def _results(row: Record) -> str:
    return json_lines.encode(
        {name: value for name, value in row.items() if name != "settings"}
    )
