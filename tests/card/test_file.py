"""The file of a card: what is written is read, and nothing else."""

import os
from pathlib import Path

import pytest

from ampsim.card import file
from ampsim.card.file import CardFile, read
from ampsim.core.files import DamagedFileError

WHO = {"device": {"type": "cpu"}, "minutes": 1.0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    card = CardFile(tmp_path / "card.jsonl", WHO, {"begun": "now"})
    card.append({"probe": "a", "seconds": 1.0, "worst": float("inf")})
    card.append({"probe": "b", "seconds": 2.5})
    return card.path


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
    head, a, b, seal = lines
    return {
        "a line is out": [head, b, seal], "two are swapped": [head, b, a, seal], "one is twice": [head, a, a, b, seal],
        "the head is out": [a, b, seal], "nothing": [], "an empty line": [head, a, b, b"\n", seal],
        "no seal": [head, a, b], "only a seal": [file.seal(b"")],
    }  # fmt: skip


@pytest.mark.parametrize("how", changed([b""] * 4))
def test_lines_that_are_moved_are_refused(path: Path, how: str) -> None:
    path.write_bytes(b"".join(changed(path.read_bytes().splitlines(keepends=True))[how]))
    with pytest.raises(DamagedFileError):
        read(path)


def test_a_file_that_is_cut_anywhere_is_refused_and_stays_as_it_is(path: Path) -> None:
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedFileError):
            read(path)
        with pytest.raises(ValueError, match="expected"):
            CardFile(path, WHO, {"begun": "later"})
        assert path.read_bytes() == data[:length]


def test_at_any_moment_the_file_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a rename the name holds all of the old, behind it all of the new, and both are on the disk."""
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(len(read(path))))
    CardFile(path, WHO, {}).append({"probe": "c", "seconds": 0.0})
    assert seen == [3, 4]
    assert read(path)[0]["begun"] == "now"


@pytest.mark.parametrize("content", [b"", b"my notes", b"{}\n", b'{"card":2', b"\x00"])
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
