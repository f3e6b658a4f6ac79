"""Which data files the runs in this folder made, and whether they repeat what was there before.

Data is committed, so a fresh clone has it already. `--reproduce` reuses only what was made here: a mark
beside the data, which git ignores, holds the sha256 of the file that a run has written, or found to be equal.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsim import records
from ampsim.records import Record


def mark_of(path: Path) -> Path:
    """Return where the mark of a data file stands."""
    return path.with_name(f".{path.name}.made-here")


def mark(path: Path) -> None:
    """Note that a run in this folder wrote `path`, or what equals it."""
    mark_of(path).write_text(digest(path) + "\n")


def is_marked(path: Path) -> bool:
    """Return whether `path` is what a run in this folder wrote."""
    return path.exists() and mark_of(path).exists() and mark_of(path).read_text().strip() == digest(path)


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Earlier:
    """The contents of a data file before a run: its provenance and its records."""

    origin: Record
    rows: Sequence[Record]

    @property
    def commit(self) -> str:
        """The commit that made it, in twelve digits."""
        return (self.origin.get("commit") or "an unknown commit")[:12]

    def equals(self, rows: Sequence[Record]) -> int:
        """Return how many records are the same, to the last bit; `settings` are what was asked and no result."""
        pairs = zip(map(_results, self.rows), map(_results, rows), strict=False)
        return sum(records.encode(a) == records.encode(b) for a, b in pairs)

    def describes(self, origin: Record) -> bool:
        """Return whether the provenance still tells the truth of a run today that gave the same records.

        The source is the same, as are the packages that both have; a commit with changes is replaced by one without.
        """
        then, now = self.origin.get("versions", {}), origin["versions"]
        packages = then.keys() & now.keys() - {"python"}  # any Python may give the same; so may an unused package
        same = all(then[name] == now[name] for name in packages)
        clean = not self.origin.get("dirty") or bool(origin["dirty"])
        return same and clean and self.origin.get("source_sha256") == origin["source_sha256"]

    def compare(self, rows: Sequence[Record]) -> str:
        """Return one sentence: how many records are the same, to the last bit, as before."""
        same = self.equals(rows)
        if same == len(self.rows) == len(rows):
            return f"equal to the data of {self.commit} to the last bit"
        device = self.origin.get("device", {}).get("name", "an unknown device")
        return f"differs: {same} of {len(self.rows)} records equal those of {self.commit}, made on {device}"

    def keeps(self, origin: Record, rows: Sequence[Record]) -> bool:
        """Return whether the file may stay as it is: all it says is true of today's run."""
        old, new = ([records.encode(row) for row in part] for part in (self.rows, rows))
        return old == new and self.describes(origin)


def earlier(path: Path, config: Record, inputs: dict[str, str]) -> Earlier | None:
    """Return what the file holds that a run is about to replace, if it answers the same question."""
    if not path.exists():
        return None
    try:
        origin, rows = records.read(path)
    except records.DamagedFileError:
        return None
    same = origin.get("config") == config and origin.get("inputs_sha256") == inputs
    return Earlier(origin, rows) if same else None


def _results(row: Record) -> Record:
    return {name: value for name, value in row.items() if name != "settings"}
