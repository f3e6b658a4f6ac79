"""Find out what a file is, and read it."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ampsim.diagnose.history import History
from ampsim.diagnose.readers.fields import as_number, entry_of
from ampsim.diagnose.readers.run import read_own
from ampsim.diagnose.readers.tables import read_csv, read_json_lines, read_objects
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.readers.trackers import read_tensorboard, read_wandb
from ampsim.run_file import read_run

LINE = 1 << 20
"""Characters of a line that are looked at: a log of one line must not fill the memory."""


class NothingReadError(ValueError):
    """A file in which nothing of a loss scale, a norm or a loss was found."""


def read_history(path: Path, progress: Callable[[int], object] = lambda _: None) -> History:
    """Return the history in a file, or in a tracker's folder.

    Args:
        path: the file of a watched run, a console log, JSON Lines, CSV, ``trainer_state.json``, TensorBoard's events
            or an offline run of Weights & Biases.
        progress: is told from time to time how many bytes have been read.

    Raises:
        FileNotFoundError, PermissionError; ImportError: a tracker that is not installed; DamagedFileError;
        NothingReadError: no number of a run in it.
    """
    history = _read(path, progress)
    if not len(history.step):
        raise NothingReadError(
            f"{path}: no loss scale, gradient norm or loss was found; expected lines such as "
            "'step: 10, loss: 2.3, loss_scale: 65536, grad_norm: 1.2', or a file that ampsim.watch wrote"
        )
    return history


def _read(path: Path, progress: Callable[[int], object]) -> History:
    if path.is_dir():
        return read_wandb(path) if list(path.glob("*.wandb")) else read_tensorboard(path)
    if "tfevents" in path.name:
        return read_tensorboard(path)
    if path.suffix == ".wandb":
        return read_wandb(path)
    with path.open("rb") as file:
        lines = _lines(file, progress)
        head = list(itertools.islice(lines, 20))
        if head[0].startswith('{"run":') and _is_own(path):
            return read_own(path)
        everything, source = itertools.chain(head, lines), str(path)
        first = next((line for line in head if line.strip()), "")
        if first.lstrip().startswith("{") and _is_json(first):
            return read_json_lines(source, everything)
        if first.lstrip().startswith(("{", "[")) and path.suffix == ".json":
            return read_objects(source, everything)
        if "," in first and _is_table(first, head):
            return read_csv(source, everything)
        return read_text(source, everything)


def _lines(file: IO[bytes], progress: Callable[[int], object]) -> Iterator[str]:
    """Yield the lines; one that is longer than `LINE` in pieces that end where a number does not."""
    rest, read = b"", 0
    while line := file.readline(LINE):
        read += len(line)
        if read >> 22 != (read - len(line)) >> 22:  # every 4 MiB
            progress(read)
        line, rest = rest + line, b""
        if len(line) >= LINE and not line.endswith(b"\n"):
            cut = max(line.rfind(mark) for mark in (b"\r", b" ", b","))
            line, rest = line[: cut + 1], line[cut + 1 :][:LINE]
        yield line.decode(errors="replace")
    yield rest.decode(errors="replace")


def _is_own(path: Path) -> bool:
    try:
        read_run(path)
    except ValueError:  # somebody else's JSON Lines may begin with "run" too
        return False
    return True


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_table(first: str, head: list[str]) -> bool:
    """Return whether a line names columns, and cells below it are numbers; a sentence may have its comma, too."""
    named = entry_of(dict.fromkeys(first.split(","), 1.0)).keys() & {"loss", "scale", "norm"}
    below = (cell for line in head[head.index(first) + 1 :] for cell in line.split(","))
    return "=" not in first and ":" not in first and bool(named) and any(as_number(cell) is not None for cell in below)
