"""Files that are seen whole or not at all, and the error of one that is neither."""

import contextlib
import errno
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO


class DamagedFileError(ValueError):
    """A data file that cannot be read as written: names the file, the line and the cure."""

    def __init__(self, path: Path, line: int, found: str, expected: str) -> None:
        self.path, self.line = path, line
        super().__init__(
            f"{path}, line {line}: {found}; expected {expected}; "
            "restore the file from version control, or delete it and make it again"
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file: at any moment `path` holds all of the old content or all of the new, on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(data)


def append(handle: int, data: bytes) -> None:
    """Write all of it at the end of an open file, or nothing where that fails or is interrupted."""
    end = os.fstat(handle).st_size
    try:
        written = os.write(handle, data)
        while written < len(data):  # a nearly full disk takes a part; the next call says so
            written += os.write(handle, data[written:])
    except BaseException:
        with contextlib.suppress(OSError):  # a pipe or a device cannot be cut
            os.ftruncate(handle, end)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open what takes the place of a file when the context is left without an exception. A device is written to.

    Raises:
        OSError: names `path`; on entry where there is no such folder, or where it takes no file.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
        else:
            yield from _replacing(path)
    except OSError as error:
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from error


def _replacing(path: Path) -> Iterator[BinaryIO]:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp makes files that only their owner can read
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if (
        os.name == "posix"
    ):  # the rename itself survives a power cut, too; elsewhere folders cannot be opened
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class BusyError(RuntimeError):
    """A file that another process is writing: names both and the cure."""


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Keep every other process from writing a file, until the context is left; one that dies lets it go.

    A hidden file beside `path` is locked. On a file system without locks this keeps nobody out.

    Raises:
        BusyError: another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    while True:
        with lock.open("a+", encoding="utf-8") as file:
            if not try_lock(file.fileno()):
                file.seek(0)
                raise BusyError(
                    f"{path}: {file.read() or 'another process'} is writing it; expected one process per file; "
                    "wait for its end, or stop it"
                )
            if not _is(lock, file):
                continue  # its holder has just removed it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def try_lock(handle: int) -> bool:
    """Lock an open file without waiting, until its last copy is closed; return whether nobody else has it.

    True too where there are no such locks, as on Windows and on many a network's file system.
    """
    with contextlib.suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
    return True


def _is(path: Path, file: IO[str]) -> bool:
    """Return whether a file is still the one of that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
