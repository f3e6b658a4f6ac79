"""Find out what a file is, and read it."""

import io
import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path

from ampsim.core.lines import Lines
from ampsim.runs.read.documents import LONGEST_DOCUMENT, read_document
from ampsim.runs.read.history import History, NothingReadError
from ampsim.runs.read.recorded import read_recorded
from ampsim.runs.read.text import Rows, TextReader
from ampsim.runs.read.trackers import is_tracker, read_tracker
from ampsim.runs.read.wrapped import joined
from ampsim.runs.record.run_file import read_run

EXAMPLE = "step: 10, loss: 2.3, loss_scale: 65536, grad_norm: 1.2"
"""A line that is read."""
_CUT = re.compile(r"[\d.+\-eE]+$")


def read_log(
    source: str | PathLike[str] | Iterable[str],
) -> History:
    """Read a training log.

    Args:
        source: Path of a log, or its lines. A path may name text (UTF-8 or UTF-16, also compressed
            by gzip), JSON, JSON Lines, CSV, a notebook, TensorBoard's or W&B's files, or a file
            that `watch` wrote.

    Returns:
        The history.

    Raises:
        OSError: If the file cannot be read.
        ImportError: If a tracker's file needs a package that is missing.
        NothingReadError: If the log has no loss, loss scale, or gradient norm.
        ValueError: If the file is damaged.
    """
    if isinstance(source, str | PathLike):
        history = _read_path(Path(source))
    else:
        history = _read_text("lines", _with_ends(source))
    events = [event for event in history.events if event.kind != "alarm"]
    if not (history.series or events or history.errors):
        raise NothingReadError(
            f"{history.source}: found no loss scale, gradient norm, or training "
            f"loss{_reason(history)}; expected lines "
            f"such as '{EXAMPLE}', or a file that ampsim.runs.watch wrote"
        )
    return history


def _read_path(path: Path) -> History:
    if is_tracker(path):
        return read_tracker(path)
    lines = Lines(path)
    source = iter(lines)
    head = list(itertools.islice(source, 20))
    # A file that a crash left with a hole begins with zeros.
    first = next((part for line in head if (part := line.lstrip("\0").lstrip())), "")
    if first.startswith('{"run":') and _is_recorded(path):
        return read_recorded(path)
    if "\0" in first or first.count("\ufffd") * 10 > len(first):
        raise NothingReadError(
            f"{path}: the file is not text; expected lines such as '{EXAMPLE}'"
        )
    text: Iterator[str] = itertools.chain(head, source)
    history = None
    if _may_be_document(path, first):
        history = _document(path, text)
        if history is None:  # no document: read it again, from the start
            lines = Lines(path)
            text = iter(lines)
    if history is None:
        history = _read_text(str(path), _complete(text))
    if lines.damage:
        history.notes.append(f"Only a part of the log was read: {lines.damage}.")
    return history


def _read_text(source: str, lines: Iterable[str]) -> History:
    rows = Rows(lines)
    history = TextReader(source).read(joined(rows.numbered()))
    if rows.refreshes:
        history.notes.append(
            "Line numbers count each refresh of a progress bar as a line; --why also shows the line of "
            "the file."
        )
    return history


def _is_recorded(path: Path) -> bool:
    with suppress(ValueError):  # other JSON Lines may begin with "run", too
        return read_run(path) is not None
    return False


def _may_be_document(path: Path, first: str) -> bool:
    """Return whether a file may be one JSON document, and not one for each line."""
    if not first.startswith(("{", "[")):
        return False
    line = first.rstrip()
    return (
        path.suffix in (".ipynb", ".json")
        or line in ("{", "[", "[{")
        or not line.endswith(("}", "]"))
    )


def _document(path: Path, lines: Iterable[str]) -> History | None:
    parts, size = list[str](), 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size > LONGEST_DOCUMENT:
            return None
    history = read_document(str(path), "".join(parts))
    return (
        history
        if history is not None and (history.series or path.suffix == ".ipynb")
        else None
    )


def _with_ends(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with their ends; lines that have none are complete."""
    lines = iter(lines)
    first = next(lines, "")
    everything = itertools.chain([first], lines)
    has_ends = first.endswith("\n")
    whole = everything if has_ends else (f"{line}\n" for line in everything)
    # The frames of a progress bar are lines, as in a file.
    frames = (part for line in whole for part in io.StringIO(line, newline=""))
    return _complete(frames) if has_ends else frames


def _complete(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines; a number at the end of the last line, which may be cut, is removed."""
    number = 0
    for number, line in enumerate(lines, 1):
        if number > 3 and not line.endswith(("\n", "\r")):
            line = _CUT.sub("", line)
        yield line


def _reason(history: History) -> str:
    """Return in words why nothing was read, if it shows."""
    path = Path(history.source)
    if path.is_dir():
        return ": the folder has no *tfevents* file and no *.wandb file"
    if not history.texts:
        if history.notes:
            return ": the compressed file is damaged"
        return (
            ": the file is empty" if path.is_file() and not path.stat().st_size else ""
        )
    return ""
