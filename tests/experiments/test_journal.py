"""The journal of an experiment: a killed run continues, and its data are those of an unbroken run."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampsim.core.files import DamagedFileError
from ampsim.runs.record import data_file
from experiments.runner.journal import Journal

PROVENANCE = {"script": "experiments/x.py", "config": {"lr": 0.1}}
ROWS = [{"unit": k, "loss": [0.1 * k, math.inf, -math.inf]} for k in range(3)]
IDENTITY = {"config": {"lr": 0.1, "steps": 3}, "threads": 1}


@pytest.fixture(autouse=True, scope="module")
def fast_disk() -> Iterator[None]:
    """What reaches the disk when is one test's concern; the others would wait for it a thousand
    times.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def run_with_journal(
    path: Path, identity: dict[str, Any] = IDENTITY
) -> tuple[Journal, int]:
    """A whole run of three units; returns the journal and how many units it had to compute."""
    journal = Journal(path, identity)
    missing = [row for row in ROWS if str(row["unit"]) not in journal.done]
    for row in missing:
        journal.append(str(row["unit"]), row)
    data_file.write(path, PROVENANCE, [journal.done[str(row["unit"])] for row in ROWS])
    journal.part.unlink()
    return journal, len(missing)


def full_journal(path: Path) -> bytes:
    journal = Journal(path, IDENTITY)
    for row in ROWS:
        journal.append(str(row["unit"]), row)
    return journal.part.read_bytes()


def test_truncated_journal_resumes_to_same_data(tmp_path: Path) -> None:
    unbroken = tmp_path / "folder" / "unbroken.jsonl"
    run_with_journal(unbroken)
    path = tmp_path / "x.jsonl"
    whole = full_journal(path)
    part = Journal(path, IDENTITY).part
    header = whole.index(b"\n")
    for length in range(len(whole) + 1):
        part.write_bytes(whole[:length])
        _, computed = run_with_journal(path)
        assert path.read_bytes() == unbroken.read_bytes()
        assert not part.exists()
        kept = whole[:length].count(b"\n") - 1 if length > header else 0
        assert computed == len(ROWS) - kept, f"{length} bytes"


def test_incomplete_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    whole, part = full_journal(path), Journal(path, IDENTITY).part
    part.write_bytes(whole[:-5])
    journal = Journal(path, IDENTITY)
    journal.append("later", {"loss": (np.float32(0.5), math.inf)})
    assert journal.done == Journal(path, IDENTITY).done
    assert [*journal.done] == ["0", "1", "later"]


def test_journals_of_settings_are_apart(tmp_path: Path) -> None:
    path, other = (
        tmp_path / "[x].jsonl",
        {"config": {"lr": 0.2, "steps": 3}, "threads": 1},
    )
    whole, first = full_journal(path), Journal(path, IDENTITY)
    second = Journal(path, other)
    assert second.done == {}
    second.part.write_bytes(b'{"jour')  # killed before it had anything
    assert run_with_journal(path, other)[1] == len(ROWS)
    assert first.part.read_bytes() == whole
    assert run_with_journal(path)[1] == 0
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_damaged_journal_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines, part = full_journal(path).split(b"\n"), Journal(path, IDENTITY).part
    for bad in (
        b"{oops",
        b"{}",
        b'{"unit": ["a"], "value": {}}',
        b'{"unit": "a", "value": 3}',
    ):
        part.write_bytes(b"\n".join([lines[0], bad, *lines[2:]]))
        with pytest.raises(DamagedFileError, match=r"x\.jsonl\.\w+\.part, line 2: "):
            Journal(path, IDENTITY)


def test_unit_is_on_disk_when_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: events.append("fsync"))
    Journal(tmp_path / "x.jsonl", IDENTITY).append("0", ROWS[0])
    assert events == ["fsync"]
