"""The file of a card: what is written is read, and nothing else."""

import os
from pathlib import Path

import pytest

from ampsim.card.verify import HEAD, read, seal, write

WHO = {"device": {"type": "cpu"}, "minutes": 1.0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path, head = tmp_path / "card.jsonl", {"card": 1, "identity": WHO, "begun": "now"}
    write(path, [head, {"probe": "a", "seconds": 1.0, "worst": float("inf")}, {"probe": "b", "seconds": 2.5}])
    return path


def refused(path: Path):
    """As damaged; what does not begin as a file of a card is called none, and nobody is told to delete it."""
    damaged = path.read_bytes().startswith(HEAD)
    return pytest.raises(ValueError, match="its seal is another" if damaged else "expected a file of `ampsim card`")


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
        with refused(path):
            read(path)


def changed(lines: list[bytes]) -> dict[str, list[bytes]]:
    head, a, b, last = lines
    return {
        "a line is out": [head, b, last], "two are swapped": [head, b, a, last], "one is twice": [head, a, a, b, last],
        "the head is out": [a, b, last], "nothing": [], "an empty line": [head, a, b, b"\n", last],
        "no seal": [head, a, b], "only a seal": [seal(b"")],
    }  # fmt: skip


@pytest.mark.parametrize("how", changed([b""] * 4))
def test_lines_that_are_moved_are_refused(path: Path, how: str) -> None:
    path.write_bytes(b"".join(changed(path.read_bytes().splitlines(keepends=True))[how]))
    with refused(path):
        read(path)


def test_a_file_that_is_cut_anywhere_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with refused(path):
            read(path)


def test_at_any_moment_the_file_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a rename the name holds all of the old, behind it all of the new, and both are on the disk."""
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(len(read(path))))
    write(path, [*read(path), {"probe": "c", "seconds": 0.0}])
    assert seen == [3, 4]
    assert read(path)[0]["begun"] == "now"
