"""The file of a card: what is written is read, and nothing else."""

import os
from pathlib import Path

import pytest

from ampsim.card.file import CardFile, read
from ampsim.core.files import DamagedFileError

WHO = {"device": {"type": "cpu"}, "minutes": 1.0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = CardFile(tmp_path / "card.jsonl", WHO, {"begun": "now"})
    file.append({"probe": "a", "seconds": 1.0, "worst": float("inf")})
    file.append({"probe": "b", "seconds": 2.5})
    return file.path


def test_what_was_appended_is_read(path: Path) -> None:
    head, *records = read(path)
    assert head["identity"] == WHO
    assert [record["probe"] for record in records] == ["a", "b"]
    assert records[0]["worst"] == float("inf")


def test_any_flipped_bit_is_refused(path: Path) -> None:
    data = path.read_bytes()
    assert len(data) < 1000
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(DamagedFileError):
            read(path)


def changed(lines: list[bytes]) -> dict[str, list[bytes]]:
    head, a, b = lines
    return {
        "a line is out": [head, b], "two are swapped": [head, b, a], "one stands twice": [head, a, a, b],
        "the head is out": [a, b], "nothing": [], "an empty line": [head, a, b, b"\n"], "cut": [head, a, b[:-1]],
    }  # fmt: skip


@pytest.mark.parametrize("how", changed([b"", b"", b" "]))
def test_lines_that_are_moved_are_refused(path: Path, how: str) -> None:
    path.write_bytes(b"".join(changed(path.read_bytes().splitlines(keepends=True))[how]))
    with pytest.raises(DamagedFileError):
        read(path)


def test_a_torn_line_is_dropped_by_the_next_start_wherever_it_is_torn(path: Path) -> None:
    data, whole = path.read_bytes(), len(path.read_bytes().splitlines(keepends=True)[0])
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        file = CardFile(path, WHO, {"begun": "later"})
        assert len(file.records) == max(1, data[:length].count(b"\n"))
        file.append({"probe": "c", "seconds": 0.0})
        assert read(path)[-1]["probe"] == "c"
        assert read(path)[0]["begun"] == ("now" if length >= whole else "later")


def test_each_record_is_on_the_disk_when_append_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(path.stat().st_size))
    file = CardFile(path, WHO, {})
    file.append({"probe": "c", "seconds": 0.0})
    assert seen == [path.stat().st_size]


@pytest.mark.parametrize("content", [b"my notes", b"{}\n", b'{"card":2', b"\x00"])
def test_a_file_of_anything_else_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"expected a file of `ampsim card`, or none; pass another --out"):
        CardFile(path, WHO, {})
    assert path.read_bytes() == content


def test_a_file_of_another_run_stays_as_it_is(path: Path) -> None:
    data = path.read_bytes()
    with pytest.raises(ValueError, match=r"another run: minutes: 1.0 then, 2.0 now; expected the same; pass another"):
        CardFile(path, {**WHO, "minutes": 2.0}, {})
    assert path.read_bytes() == data
