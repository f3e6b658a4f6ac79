"""The lines of files from outside: what was written comes back, damage is reported, and memory is
bounded.
"""

import bz2
import gzip
import lzma
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.core.files import DamagedFileError
from ampsim.core.lines import Lines
from tests.examples import examples

TEXT = "step 1\nstep 2\r\nbar 10%\rbar 20%\n\nlast"
LINES = ["step 1\n", "step 2\r\n", "bar 10%\r", "bar 20%\n", "\n", "last"]
SHORT = 64  # characters of a line


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, lambda data: gzip.compress(gzip.compress(data))]
)
def test_packed_text_is_read(tmp_path: Path, pack, encoding: str, strict: bool) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(TEXT.encode(encoding)))
    source = Lines(path, strict=strict)
    assert list(source) == LINES
    assert (source.number, source.damage) == (len(LINES), "")


@pytest.mark.parametrize(
    "data",
    [bz2.compress(b"a"), lzma.compress(b"a"), b"PK\x03\x04", b"\x28\xb5\x2f\xfd"],
)
def test_other_archives_raise(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"compressed by (bzip2|xz|zip|zstd)"):
        list(Lines(path))


@settings(max_examples=examples(ms=2))
@given(st.text(st.sampled_from("1 ,\né"), max_size=4 * SHORT), st.integers(2, SHORT))
def test_parts_join_to_the_text(tmp_path_factory, text: str, longest: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "log"
    path.write_text(text, newline="")
    parts = list(Lines(path, longest=longest))
    assert "".join(parts) == text
    assert max(map(len, parts), default=0) <= 2 * longest


def test_long_line_is_cut_between_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("12345678 " * 20)
    assert {
        number for part in Lines(path, longest=SHORT) for number in part.split()
    } == {"12345678"}


def test_strict_long_line_raises(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("a" * (SHORT - 1) + "\n" + "a" * SHORT)
    with pytest.raises(DamagedFileError, match=r"line 2: a line of over 64 characters"):
        list(Lines(path, longest=SHORT, strict=True))


def test_invalid_byte_is_replaced_or_raises(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n\xfftwo\n")
    assert list(Lines(path)) == ["one\n", "\ufffdtwo\n"]
    with pytest.raises(DamagedFileError, match="line 2: the byte 0xff"):
        list(Lines(path, strict=True))


def test_torn_archive_is_reported(tmp_path: Path) -> None:
    path, data = tmp_path / "log", gzip.compress(TEXT.encode())
    for length in range(len(data) - 8, len(data)):
        path.write_bytes(data[:length])
        source = Lines(path)
        assert list(source) == LINES[: source.number]
        assert source.damage
        with pytest.raises(DamagedFileError, match="truncated or damaged"):
            list(Lines(path, strict=True))


@pytest.mark.parametrize("strict", [False, True])
def test_compressed_bomb_takes_bounded_memory(tmp_path: Path, strict: bool) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        for _ in Lines(path, strict=strict):
            pass
    except DamagedFileError:
        assert strict
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 32 << 20


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        list(Lines(tmp_path / "nothing"))
