"""Which data files the runs in this folder made, and whether they repeat what was there before.

Data is committed, so a fresh clone has it already. `--reproduce` reuses only what was made here: a mark
beside the data, which git ignores, holds the sha256 of the file that a run has written.
"""

import hashlib
from pathlib import Path
from typing import Any

from ampsim import records


def mark_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.made-here")


def mark(path: Path) -> None:
    """Note that a run in this folder wrote `path`."""
    mark_of(path).write_text(digest(path) + "\n")


def is_marked(path: Path) -> bool:
    """Whether `path` is what a run in this folder wrote."""
    return mark_of(path).exists() and mark_of(path).read_text().strip() == digest(path)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def earlier(path: Path, config: Any, inputs: Any) -> tuple[str, list[Any]] | None:
    """Commit and records of the file that a run is about to replace, if they answer the same question."""
    if not path.exists():
        return None
    try:
        provenance, rows = records.read(path)
    except records.DamagedFileError:
        return None
    same = provenance.get("config") == config and provenance.get("inputs_sha256") == inputs
    return ((provenance.get("commit") or "an unknown commit")[:12], rows) if same else None


def compare(before: tuple[str, list[Any]], path: Path) -> str:
    """One sentence: how many of the records are the same, to the last bit, as before."""
    commit, old = before
    _, new = records.read(path)
    same = sum(records.encode(a) == records.encode(b) for a, b in zip(old, new, strict=False))
    if same == len(old) == len(new):
        return f"all {same} records equal those from {commit}, to the last bit"
    return f"{same} of {len(old)} records equal those from {commit} (other CPUs round fp16 sums in another order)"
