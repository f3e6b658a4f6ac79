"""Data files: what was written is read, a write is atomic, and damage is reported."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.core.files import DamagedFileError
from ampsim.runs.record import data_file
from tests.examples import examples

PROVENANCE = {"script": "experiments/x.py", "config": {"lr": 0.1}}
ROWS = [{"unit": k, "loss": [0.1 * k, math.inf, -math.inf]} for k in range(3)]
TEXT = st.text().filter(lambda text: text not in {"inf", "-inf", "nan"})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
OBJECTS = st.dictionaries(TEXT, SCALARS, max_size=3)


@pytest.fixture(autouse=True, scope="module")
def fast_disk() -> Iterator[None]:
    """What reaches the disk when is one test's concern; the others would wait for it a thousand
    times.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@settings(max_examples=examples(ms=5))
@given(OBJECTS, st.lists(OBJECTS, max_size=3))
def test_file_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    provenance: dict[str, Any],
    rows: list[dict[str, Any]],
) -> None:
    path = tmp_path_factory.mktemp("records") / "x.jsonl"
    data_file.write(path, provenance, rows)
    assert repr(data_file.read(path)) == repr((provenance, rows))
    assert repr(data_file.read_provenance(path)) == repr(provenance)
    assert [p.name for p in path.parent.iterdir()] == ["x.jsonl"]


def test_content_is_synced_before_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    rename = Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: events.append("fsync"))
    monkeypatch.setattr(
        Path, "replace", lambda old, new: (events.append("rename"), rename(old, new))[1]
    )
    data_file.write(tmp_path / "x.jsonl", PROVENANCE, ROWS)
    assert events == ["fsync", "rename", "fsync"]  # content, name, folder


def test_truncated_file_raises_with_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl"
    data_file.write(path, PROVENANCE, ROWS)
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # the last line feed is not missed
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError) as caught:
            data_file.read(path)
        assert f"{path}, line {caught.value.line}: " in str(caught.value)
        assert caught.value.line <= 1 + len(ROWS) + 1


def test_extra_record_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    data_file.write(path, PROVENANCE, ROWS)
    path.write_bytes(path.read_bytes() + b'{"of":"another run"}\n')
    with pytest.raises(DamagedFileError, match=f"has 4 records; expected {len(ROWS)}"):
        data_file.read(path)


@pytest.mark.parametrize(
    "line", [b"{not json}", b"\xff\xfe", b"[1, 2]", b"", b"[" * 100_000]
)
def test_damaged_line_is_reported(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x.jsonl"
    data_file.write(path, PROVENANCE, ROWS)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[3:]]))
    with pytest.raises(DamagedFileError, match=r"x\.jsonl, line 3: "):
        data_file.read(path)


@pytest.mark.parametrize(
    "first",
    [
        "{}",
        '{"provenance":[]}',
        '{"provenance":{}}',
        '{"provenance":{},"records":true}',
    ],
)
def test_a_file_needs_provenance(tmp_path: Path, first: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{first}\n")
    with pytest.raises(DamagedFileError, match="line 1: "):
        data_file.read(path)
