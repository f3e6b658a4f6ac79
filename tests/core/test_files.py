"""Files that are replaced whole or not at all, wherever the path leads."""

import os
from pathlib import Path

import pytest

from ampsim.core import files
from ampsim.core.files import (
    BusyError,
    check_own,
    replacing,
    sole_writer,
    write_atomically,
)


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def test_file_is_replaced_after_write(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["report.md"]


def test_failed_write_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"%d" % (1 // 0))
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.md"]


@pytest.mark.skipif(os.name != "posix", reason="needs a umask")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_new_file_honors_umask(tmp_path: Path, umask: int) -> None:
    path, before = tmp_path / "report.md", os.umask(umask)
    try:
        write_atomically(path, b"new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_replaced_file_keeps_permissions(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_symbolic_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target.md", tmp_path / "link.md"
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")


def test_foreign_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    check_own(path, "ours")  # there is none
    for text in ("", "by ours\n"):
        path.write_text(text)
        check_own(path, "ours")
    path.write_text("notes")
    check_own(path, "ours", force=True)
    with pytest.raises(FileExistsError, match=r"report\.md: .*--force"):
        check_own(path, "ours")


def test_append_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, left = os.write, [b"al", b"l", b"no"]

    def part(handle: int, data: bytes) -> int:
        return write(handle, left.pop(0))  # the third part is the last

    monkeypatch.setattr(os, "write", part)
    path = tmp_path / "x.jsonl"
    with path.open("ab") as file:
        files.append(file.fileno(), b"all")
        with pytest.raises(IndexError):
            files.append(file.fileno(), b"none")
    assert path.read_bytes() == b"all"


def test_error_names_given_path(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "folder.md"):
        with pytest.raises(OSError, match=str(path)) as error, replacing(path):
            raise AssertionError("not entered")
        assert error.value.filename == str(path)
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="needs devices")
def test_write_keeps_device_file() -> None:
    reader, device = os.openpty()
    path = Path(os.ttyname(device))
    write_atomically(path, b"new")
    assert os.read(reader, 3) == b"new"
    assert path.is_char_device()
    os.close(device)
    os.close(reader)


def test_second_writer_raises_unless_lock_stale(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x.jsonl"
    with sole_writer(path):
        (lock,) = path.parent.iterdir()
        with (
            pytest.raises(BusyError, match=rf"x\.jsonl: process {os.getpid()} "),
            sole_writer(path),
        ):
            raise AssertionError("not entered")
        with sole_writer(path.with_name("y.jsonl")):
            pass
        assert names(path.parent) == [lock.name]
    lock.write_text("process 1 on a host that lost its power")
    with sole_writer(path):
        assert "power" not in lock.read_text()
    assert names(path.parent) == []
