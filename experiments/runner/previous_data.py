"""The data that was there before a run: whether today's records repeat it, and whether its file may stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsim import records
from ampsim.records import Record
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
        """Return how many records are as before, to the last bit; `settings` are no result."""
        return sum(_results(a) == _results(b) for a, b in zip(self.rows, rows, strict=False))

    def compare(self, rows: Sequence[Record]) -> str:
        """Return one sentence: how many records are as before."""
        same = self.equal(rows)
        if same == len(self.rows) == len(rows):
            return f"equal to the data of {self.commit} to the last bit"
        device = self.origin.get("device", {}).get("name", "an unknown device")
        return f"differs: {same} of {len(self.rows)} records equal those of {self.commit}, made on {device}"

    def keeps(self, origin: Record, rows: Sequence[Record]) -> bool:
        """Return whether the file may stay as it is: all it says is true of today's run.

        The records and the source are the same, as are the packages that both have; a commit with changes is replaced
        by one without.
        """
        then, now = self.origin.get("versions", {}), origin["versions"]
        packages = then.keys() & now.keys() - {
            "python"
        }  # any Python may give the same; so may an unused package
        return (
            records.encode(self.rows) == records.encode(rows)
            and all(then[name] == now[name] for name in packages)
            and (not self.origin.get("dirty") or bool(origin["dirty"]))
            and self.origin.get("source_sha256") == origin["source_sha256"]
        )


def earlier(
    path: Path, config: Record, inputs: Mapping[str, str], *, replaced: bool = True
) -> Earlier | None:
    """Return what a file holds, if there is one and it answers the same question.

    Raises:
        ampsim.records.DamagedFileError: it cannot be read, and is not to be `replaced` anyway.
    """
    try:
        origin, rows = records.read(path)
    except FileNotFoundError:
        return None
    except records.DamagedFileError:
        if replaced:
            return None
        raise
    same = origin.get("config") == config and origin.get("inputs_sha256") == inputs
    return Earlier(origin, rows) if same else None


def is_of(path: Path, origin: Record) -> bool:
    """Return whether `path` is a finished file of the very run that `origin` tells of."""
    if not path.exists():
        return False
    there = records.read_provenance(path)
    return all(there.get(name) == origin[name] for name in IDENTITY)


def write(path: Path, origin: Record, rows: Sequence[Record], before: Earlier | None) -> bool:
    """Write a finished file, unless it says the same already and its provenance is still true; return whether.

    Args:
        path: of the file.
        origin: the provenance.
        rows: the records.
        before: what the file held, if it is to stay where that says the same.
    """
    written = before is None or not before.keeps(origin, rows)
    if written:
        records.write(path, origin, rows)
    return written


def _results(row: Record) -> str:
    return records.encode({name: value for name, value in row.items() if name != "settings"})
