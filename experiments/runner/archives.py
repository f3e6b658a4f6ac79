"""Packs files into archives of a limited size, to be copied from a borrowed machine."""

import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

COUNT = 8  # archives
LIMIT = 16 << 20  # bytes of one
ROOM = LIMIT - (64 << 10)  # for files: the estimate of an archive's size is slightly low
HEADER = 1024  # bytes of a file's name and padding


def pack(files: Iterable[Path], root: Path, out: Path) -> list[Path]:
    """Pack files into at most `COUNT` archives of at most `LIMIT` bytes, in place of those before.

    Args:
        files: Files to pack, the most valuable first.
        root: Folder that the names in the archives begin at.
        out: Folder for the archives.

    Returns:
        The files that do not fit.
    """
    groups: list[list[Path]] = [[] for _ in range(COUNT)]
    room = [ROOM] * COUNT
    left_out = []
    for path in files:
        size = HEADER + len(zlib.compress(path.read_bytes()))
        place = next((place for place in range(COUNT) if room[place] >= size), None)
        if place is None:
            left_out.append(path)
            continue
        groups[place].append(path)
        room[place] -= size
    out.mkdir(parents=True, exist_ok=True)
    for number, group in enumerate(groups, 1):
        if group:
            write(out / f"gpu-{number}.tgz", group, root)
    return left_out


def write(path: Path, files: Iterable[Path], root: Path) -> None:
    """Write one archive."""
    new = path.with_suffix(".tmp")
    with tarfile.open(new, "w:gz") as archive:
        for file in files:
            archive.add(file, file.relative_to(root))
    new.replace(path)
