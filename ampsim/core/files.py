"""Files that are seen whole or not at all, and the error of one that is neither."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
    if os.name == "posix":  # the rename itself survives a power cut, too; elsewhere folders cannot be opened
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
