"""Write files to a temporary folder instead of where a script asks for, and read them back from
there.

Functions of Python that take a path are replaced: a path that is written is mapped to a path below
the folder, and a path that is read is mapped if the mapped file exists. A file that native code
opens by its path is not redirected, except those of torch and safetensors.
"""

import importlib
import importlib.util
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ampsim.testing.script_checks.patching import Patches

# Functions of os, shutil, and safetensors whose arguments are paths, and what each one is: read,
# written, or removed.
ROLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("stat", "lstat", "statvfs", "access", "chdir", "readlink", "listdir", "scandir", "utime", "chmod"),
        ("read",),
    ),
    **dict.fromkeys(("rmdir", "remove", "unlink", "rmtree"), ("removed",)),
    **dict.fromkeys(("rename", "replace", "link", "symlink"), ("moved", "written")),
    "mkdir": ("made",), "safe_open": ("read",), "serialize_file": ("", "written"),
}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Native code reads the caches of libraries, as that of datasets.
KEPT = ("/dev/", "/proc/", "/sys/", os.path.expanduser("~/.cache/"))


@contextmanager
def redirect_writes(folder: Path) -> Iterator["Redirection"]:
    """Map the paths of files that Python writes into a folder, which is created.

    Args:
        folder: Absolute path. What is beside it in its parent is not mapped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    redirection = Redirection(folder)
    modules: list[Any] = [os, shutil]
    if importlib.util.find_spec("safetensors"):
        modules.append(importlib.import_module("safetensors.torch"))
    with Patches() as patches:
        patches.item_everywhere(io.open, redirection.opening(io.open))
        patches.attribute(os, "open", redirection.opening(os.open))
        patches.attribute(os, "getcwd", redirection.current_folder)
        for name, roles in ROLES.items():
            for module in modules:
                original = vars(module).get(name)
                if callable(original):  # shutil has the module stat
                    patches.attribute(
                        module, name, redirection.calling(original, roles)
                    )
        yield redirection


class Redirection:
    """Maps paths into a folder, and wraps functions that take paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self._kept = (f"{folder.parent}{os.sep}", *KEPT)
        self._exists = os.path.lexists
        self._copy = shutil.copyfile
        self._process_folder = os.getcwd

    def mapped(self, path: Any) -> Any:
        """Return the path below the folder, in bytes for bytes; None for no path, or if it is not
        mapped.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        full = os.path.abspath(os.fsdecode(path))
        if full.startswith(self._kept):
            return None
        below = self.folder + full
        return os.fsencode(below) if isinstance(path, bytes) else below

    def branch(self, name: str) -> None:
        """Go on with a copy of the folder, so that what this process writes is seen in no other."""
        copy = f"{self.folder}-{name}"
        current = self.current_folder()
        shutil.copytree(self.folder, copy, symlinks=True)
        self.folder = copy
        os.chdir(current)

    def current_folder(self) -> str:
        """Return the current folder as the script knows it, also where it has changed to a mapped
        one.
        """
        there = self._process_folder()
        is_mapped = there.startswith(self.folder + os.sep)
        return there.removeprefix(self.folder) if is_mapped else there

    def to_read(self, path: Any) -> Any:
        """Return where a path is read."""
        mapped = self.mapped(path)
        if mapped is None:
            return path
        if self._exists(mapped):
            return mapped
        # In a mapped folder, a relative path would lead to another file.
        is_here = self._process_folder() == self.current_folder()
        return path if is_here else os.path.abspath(path)

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

    def to_use(self, path: Any, role: str) -> Any:
        """Return where a path is used in a role of `ROLES`; None if the call must be left out."""
        if role == "made" and self.mapped(path) and os.path.lexists(path):
            raise FileExistsError(f"[Errno 17] File exists: {os.fspath(path)!r}")
        if role in ("made", "written"):
            return self.to_write(path)
        if role == "moved":
            self.to_write(path, keeps=True)
        there = self.to_read(path)
        if (
            role == "removed"
            and there is path
            and self.mapped(path)
            and self._exists(path)
        ):
            return None  # what was there before the script stays
        return there

    def calling(self, original: Any, roles: Sequence[str]) -> Callable[..., Any]:
        """Wrap a function whose first arguments have these roles; "" for no path."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is not None:
                return original(*args, **kwargs)
            pairs = zip(args, roles, strict=False)
            used = [self.to_use(arg, role) if role else arg for arg, role in pairs]
            if None in used:
                return None
            return original(*used, *args[len(used) :], **kwargs)

        return call

    def opening(self, original: Any) -> Callable[..., Any]:
        """Wrap `open` or `os.open`."""

        def open_(file: Any, mode: str | int = "r", *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None and _is_written(mode):
                file = self.to_write(file, keeps=_keeps(mode))
            elif kwargs.get("dir_fd") is None:
                file = self.to_read(file)
            return original(file, mode, *args, **kwargs)

        return open_


def _is_written(mode: str | int) -> bool:
    if isinstance(mode, int):
        return bool(mode & WRITING)
    return not {"w", "a", "x", "+"}.isdisjoint(mode)


def _keeps(mode: str | int) -> bool:
    """Return whether the content of a file stays when it is opened."""
    return not mode & os.O_TRUNC if isinstance(mode, int) else "w" not in mode
