"""Checkpoints that a framework writes into a folder, as bytes which `Loop` can hold."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def saved(write: Callable[[Path], object]) -> dict[str, bytes]:
    """Return what a function writes into the folder that it is given: bytes by relative path."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def loaded(files: Mapping[str, bytes], read: Callable[[Path], object]) -> None:
    """Call a function with a folder in which these files lie."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        read(Path(folder))


def in_folder(write: Callable[[str], object], read: Callable[[str], object]) -> tuple[Callable[..., Any], ...]:
    """Return `save` and `load` of a Loop, by a framework's functions of a folder's name."""
    return lambda: saved(lambda folder: write(str(folder))), lambda files: loaded(files, lambda f: read(str(f)))
