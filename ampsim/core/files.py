"""Atomic writes, file locks, and the errors of damaged and busy files."""

import contextlib
import errno
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO


class DamagedFileError(ValueError):
    """Raised for a file that cannot be read as expected; the message has the file, the line, and
    the fix.
    """

    def __init__(
        self,
        path: Path,
        line: int,
        found: str,
        expected: str,
        fix: str = "restore the file from version control, or delete it and create it again",
    ) -> None:
        self.path = path
        self.line = line
        super().__init__(f"{path}, line {line}: {found}; expected {expected}; {fix}")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file atomically: `path` has either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(data)


def check_own(path: Path, mark: str, *, force: bool = False) -> None:
    """Check that a command may replace a file: it is absent, empty, or written by this command
    before.

    Args:
        path: File that the command is going to write.
        mark: Text that stands in the first 4,096 bytes of each file that the command writes.
        force: Whether to skip the check.

    Raises:
        FileExistsError: If the file does not contain the mark.
        OSError: If the file cannot be read.
    """
    if force or not path.is_file():  # a device, e.g. /dev/stdout, has nothing to lose
        return
    with path.open("rb") as file:
        start = file.read(4096)
    if start and mark.encode() not in start:
        raise FileExistsError(
            f"{path}: ampsim did not write this file; pass another name, or --force to replace it"
        )


def append(handle: int, data: bytes) -> None:
    """Append data to an open file; if this fails or is interrupted, restore the old length."""
    end = os.fstat(handle).st_size
    try:
        written = os.write(handle, data)
        # A nearly full disk may write a part; the next call raises.
        while written < len(data):
            written += os.write(handle, data[written:])
    except BaseException:
        with contextlib.suppress(OSError):  # a pipe or a device cannot be truncated
            os.ftruncate(handle, end)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` on exit without an exception. A device is written
    directly.

    A new file has the permissions that the umask leaves; an existing file keeps its permissions.
    The target of a symbolic link is replaced, and the link stays.

    Raises:
        OSError: On entry, if the folder does not exist or is not writable. The error names `path`.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
        else:
            yield from _replacing(Path(os.path.realpath(path)))
    except OSError as error:
        raise type(error)(
            error.errno, error.strerror or str(error), str(path)
        ) from error


def _replacing(path: Path) -> Iterator[BinaryIO]:
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    # The kernel applies the umask; tempfile would create a file for its owner alone.
    handle = os.open(
        new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
    )
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        # Makes the rename survive a power loss. Other systems cannot open folders.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class BusyError(RuntimeError):
    """Raised for a file that another process is writing; the message has both and the fix."""


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Lock a file against other writers for the duration of the context.

    The lock is on a hidden file next to `path` and is released when the process ends. A file system
    without locks gives no protection.

    Raises:
        BusyError: If another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    while True:
        with lock.open("a+", encoding="utf-8") as file:
            if not try_lock(file.fileno()):
                file.seek(0)
                raise BusyError(
                    f"{path}: {file.read() or 'another process'} is writing it; expected one process per file; "
                    "wait until that process ends, or stop it"
                )
            if not _is(lock, file):
                continue  # the previous holder has just removed it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def try_lock(handle: int) -> bool:
    """Lock an open file without waiting; return whether the lock was free.

    The lock lasts until the last copy of the handle is closed. Returns True on systems without such
    locks, e.g. Windows and many network file systems.
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
    """Return whether an open file is still the file at `path`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
