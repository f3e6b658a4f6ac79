"""Write files to a temporary folder instead of where a script asks for, and read them back from there.

Functions of Python that take a path are replaced: a path that is written is mapped to a path below the folder, and a
path that is read is mapped if the mapped file exists. A file that native code opens by its path is not redirected,
except those of torch and safetensors.
"""

import importlib
import importlib.util
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ampsim.testing.script_checks.patching import Patches

READERS = (
    "stat", "lstat", "statvfs", "access", "chdir", "readlink", "listdir", "scandir", "utime", "chmod",
)  # fmt: skip
REMOVERS = ("rmdir", "remove", "unlink")
PAIRS = ("rename", "replace", "link", "symlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KEPT = ("/dev/", "/proc/", "/sys/")


@contextmanager
def redirect_writes(folder: Path) -> Iterator["Redirection"]:
    """Map the paths of files that Python writes into a folder, which is created.

    Args:
        folder: Absolute path. What is beside it in its parent is not mapped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    redirection = Redirection(folder)
    with Patches() as patches:
        patches.item_everywhere(io.open, redirection.opening(io.open))
        patches.attribute(os, "open", redirection.opening_descriptor(os.open))
        patches.attribute(os, "mkdir", redirection.making(os.mkdir))
        patches.attribute(shutil, "rmtree", redirection.removing(shutil.rmtree))
        for name in READERS:
            patches.attribute(os, name, redirection.reading(getattr(os, name)))
        for name in REMOVERS:
            patches.attribute(os, name, redirection.removing(getattr(os, name)))
        for name in PAIRS:
            patches.attribute(os, name, redirection.moving(getattr(os, name)))
        if importlib.util.find_spec("safetensors"):
            module = importlib.import_module("safetensors.torch")
            save = redirection.writing_second(module.serialize_file)
            patches.attribute(module, "serialize_file", save)
            patches.attribute(module, "safe_open", redirection.reading(module.safe_open))
        yield redirection


class Redirection:
    """Maps paths into a folder, and wraps functions that take paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self._kept = (f"{folder.parent}{os.sep}", *KEPT)
        self._exists, self._copy = os.path.lexists, shutil.copyfile

    def mapped(self, path: Any) -> Any:
        """Return the path below the folder, in bytes for bytes; None for no path, or if it is not mapped."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        full = os.path.abspath(os.fsdecode(path))
        if full.startswith(self._kept):
            return None
        below = self.folder + full
        return os.fsencode(below) if isinstance(path, bytes) else below

    def to_read(self, path: Any) -> Any:
        """Return where a path is read."""
        mapped = self.mapped(path)
        return mapped if mapped and self._exists(mapped) else path

    def to_write(self, path: Any, *, keeps: bool = False) -> Any:
        """Return where a path is written, in a folder that exists.

        Args:
            path: A path, or what a function takes instead.
            keeps: Whether the content of an existing file is kept.
        """
        mapped = self.mapped(path)
        if mapped is None:
            return path
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(parent):
            os.makedirs(os.path.dirname(mapped), exist_ok=True)
        if keeps and not self._exists(mapped) and os.path.isfile(path):
            self._copy(path, mapped)
        return mapped

    def opening(self, original: Any) -> Callable[..., Any]:
        """Wrap `open`."""

        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            is_written = not {"w", "a", "x", "+"}.isdisjoint(mode)
            keeps = "a" in mode or "r" in mode
            path = self.to_write(file, keeps=keeps) if is_written else self.to_read(file)
            return original(path, mode, *args, **kwargs)

        return open_

    def opening_descriptor(self, original: Any) -> Callable[..., Any]:
        """Wrap `os.open`."""

        def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is None:
                keeps = not flags & os.O_TRUNC
                is_written = bool(flags & WRITING)
                path = self.to_write(path, keeps=keeps) if is_written else self.to_read(path)
            return original(path, flags, mode, dir_fd=dir_fd)  # type: ignore[no-any-return]

        return open_

    def making(self, original: Any) -> Callable[..., Any]:
        """Wrap `os.mkdir`."""

        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            if self.mapped(path) and os.path.lexists(path):
                raise FileExistsError(f"[Errno 17] File exists: {os.fspath(path)!r}")
            original(self.to_write(path), *args, **kwargs)

        return mkdir

    def reading(self, original: Any) -> Callable[..., Any]:
        """Wrap a function whose first argument is a path that it reads."""

        def read(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            is_plain = kwargs.get("dir_fd") is None
            return original(self.to_read(path) if is_plain else path, *args, **kwargs)

        return read

    def removing(self, original: Any) -> Callable[..., Any]:
        """Wrap a function that removes a path; what was there before the script stays."""

        def remove(path: Any, *args: Any, **kwargs: Any) -> None:
            target = self.to_read(path) if kwargs.get("dir_fd") is None else path
            if target is not path or not self.mapped(path) or not self._exists(path):
                original(target, *args, **kwargs)

        return remove

    def moving(self, original: Any) -> Callable[..., Any]:
        """Wrap a function of two paths, of which the second one is written."""

        def move(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            self.to_write(source, keeps=True)
            original(self.to_read(source), self.to_write(target), *args, **kwargs)

        return move

    def writing_second(self, original: Any) -> Callable[..., Any]:
        """Wrap a function whose second argument is a path that it writes."""

        def write(values: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(values, self.to_write(path), *args, **kwargs)

        return write
