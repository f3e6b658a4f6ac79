import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import records
from tests.examples import examples

PROVENANCE = {"script": "experiments/x.py", "config": {"lr": 0.1}}
ROWS = [{"unit": k, "loss": [0.1 * k, math.inf, -math.inf]} for k in range(3)]
IDENTITY = {"config": {"lr": 0.1, "steps": 3}, "threads": 1}

TEXT = st.text().filter(lambda text: text not in {"inf", "-inf", "nan"})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
OBJECTS = st.dictionaries(
    TEXT, SCALARS, max_size=3
)  # what is inside them is the next test's concern


@pytest.fixture(autouse=True, scope="module")
def fast_disk() -> Iterator[None]:
    """What reaches the disk when is one test's concern; the others would wait for it a thousand times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@settings(max_examples=examples(ms=8))
@given(VALUES)
def test_line_round_trip(value: Any) -> None:
    line = records.encode(value)
    assert "\n" not in line
    assert repr(records.decode(line)) == repr(value)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@settings(max_examples=examples(ms=5))
@given(OBJECTS, st.lists(OBJECTS, max_size=3))
def test_file_round_trip(
    tmp_path_factory: pytest.TempPathFactory, provenance: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("records") / "x.jsonl"
    records.write(path, provenance, rows)
    assert repr(records.read(path)) == repr((provenance, rows))
    assert repr(records.read_provenance(path)) == repr(provenance)
    assert [p.name for p in path.parent.iterdir()] == ["x.jsonl"]


def test_numpy_values_become_plain_json() -> None:
    value = {
        "a": np.array([1.5, np.inf, np.nan]),
        "b": np.float32(0.1),
        "c": (1, np.int64(2)),
        "d": np.bool_(True),
    }
    assert (
        records.encode(value)
        == '{"a":[1.5,"inf","nan"],"b":0.10000000149011612,"c":[1,2],"d":true}'
    )


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_text_that_reads_as_float_raises(text: str) -> None:
    with pytest.raises(
        ValueError, match=f"text '{text}': expected text that does not read as a number"
    ):
        records.encode({"arm": text})


def test_non_string_key_raises() -> None:
    with pytest.raises(TypeError, match="key 1 of type int"):
        records.encode({"a": [{1: 2}]})


@pytest.mark.parametrize("line", ["NaN", "[Infinity]", "-Infinity", "{", ""])
def test_only_strict_json_is_read(line: str) -> None:
    with pytest.raises(ValueError, match=r"is not JSON|Expecting"):
        records.decode(line)


def test_content_is_synced_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    rename = Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: events.append("fsync"))
    monkeypatch.setattr(
        Path, "replace", lambda old, new: (events.append("rename"), rename(old, new))[1]
    )
    records.write(tmp_path / "x.jsonl", PROVENANCE, ROWS)
    assert events == ["fsync", "rename", "fsync"]  # content, name, folder
    records.Journal(tmp_path / "x.jsonl", IDENTITY).append("0", ROWS[0])
    assert events[3:] == ["fsync"]


def test_truncated_file_raises_with_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl"
    records.write(path, PROVENANCE, ROWS)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(records.DamagedFileError) as caught:
            records.read(path)
        assert f"{path}, line {caught.value.line}: " in str(caught.value)
        assert caught.value.line <= 1 + len(ROWS) + 1


def test_extra_record_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    records.write(path, PROVENANCE, ROWS)
    path.write_bytes(path.read_bytes() + b'{"of":"another run"}\n')
    with pytest.raises(
        records.DamagedFileError, match=f"expected {len(ROWS)} records as the first line says"
    ):
        records.read(path)


@pytest.mark.parametrize(
    "line", [b"{not json}", b"\xff\xfe", b"[1, 2]", b"", b'{"loss":NaN}', b"[" * 100_000]
)
def test_damaged_line_is_reported(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x.jsonl"
    records.write(path, PROVENANCE, ROWS)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[3:]]))
    with pytest.raises(records.DamagedFileError, match=r"x\.jsonl, line 3: "):
        records.read(path)


@pytest.mark.parametrize(
    "first", ["{}", '{"provenance":[]}', '{"provenance":{}}', '{"provenance":{},"records":true}']
)
def test_a_file_needs_provenance(tmp_path: Path, first: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{first}\n")
    with pytest.raises(records.DamagedFileError, match="line 1: "):
        records.read(path)


def run_with_journal(
    path: Path, identity: dict[str, Any] = IDENTITY
) -> tuple[records.Journal, int]:
    """A whole run of three units; returns the journal and how many units it had to compute."""
    journal = records.Journal(path, identity)
    missing = [row for row in ROWS if str(row["unit"]) not in journal.done]
    for row in missing:
        journal.append(str(row["unit"]), row)
    journal.finish(PROVENANCE, [journal.done[str(row["unit"])] for row in ROWS])
    return journal, len(missing)


def full_journal(path: Path) -> bytes:
    journal = records.Journal(path, IDENTITY)
    for row in ROWS:
        journal.append(str(row["unit"]), row)
    return journal.part.read_bytes()


def test_truncated_journal_resumes_to_same_data(tmp_path: Path) -> None:
    unbroken = tmp_path / "folder" / "unbroken.jsonl"
    run_with_journal(unbroken)
    path = tmp_path / "x.jsonl"
    whole = full_journal(path)
    part = records.Journal(path, IDENTITY).part
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
    whole, part = full_journal(path), records.Journal(path, IDENTITY).part
    part.write_bytes(whole[:-5])
    journal = records.Journal(path, IDENTITY)
    journal.append("later", {"loss": (np.float32(0.5), math.inf)})
    assert journal.done == records.Journal(path, IDENTITY).done
    assert [*journal.done] == ["0", "1", "later"]


def test_journal_of_other_settings_is_reported(tmp_path: Path) -> None:
    path, other = tmp_path / "[x].jsonl", {"config": {"lr": 0.2, "steps": 3}, "threads": 1}
    whole, first = full_journal(path), records.Journal(path, IDENTITY)
    second = records.Journal(path, other)
    assert second.done == {}
    assert second.others() == {first.part: "config.lr: 0.1 then, 0.2 now"}
    assert records.difference({"same": 1, "lr": 0.1}, {"same": 1}).startswith("lr: 0.1 then, null")
    second.part.write_bytes(b'{"jour')
    assert first.others() == {}  # killed before it had anything
    assert run_with_journal(path, other)[1] == len(ROWS)
    assert first.part.read_bytes() == whole
    assert run_with_journal(path)[1] == 0
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_damaged_journal_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines, part = full_journal(path).split(b"\n"), records.Journal(path, IDENTITY).part
    for bad in (b"{oops", b"{}", b'{"unit": ["a"], "value": {}}', b'{"unit": "a", "value": 3}'):
        part.write_bytes(b"\n".join([lines[0], bad, *lines[2:]]))
        with pytest.raises(records.DamagedFileError, match=r"x\.jsonl\.\w+\.part, line 2: "):
            records.Journal(path, IDENTITY)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_round_trip(value: float) -> None:
    assert records.decode(records.encode({"threshold": value})) == {"threshold": value}
