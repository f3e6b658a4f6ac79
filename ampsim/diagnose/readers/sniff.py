"""Find out what a file is, and read it."""

import codecs
import contextlib
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from ampsim.diagnose.formats import PROGRAMS
from ampsim.diagnose.history import History
from ampsim.diagnose.readers.fields import as_number, entry_of, kinds
from ampsim.diagnose.readers.run import read_own
from ampsim.diagnose.readers.tables import csv_rows, history_of, json_rows, object_rows, parsed
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.readers.trackers import read_tracker
from ampsim.runs.record.run_file import read_run

LINE = (
    1 << 20
)  # characters of a line that are looked at: a log of one line must not fill the memory
SEPARATORS = ",;"  # of the columns of a table
UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE  # how a log begins that PowerShell wrote
TORN = (EOFError, gzip.BadGzipFile, zlib.error)


class NothingReadError(ValueError):
    """A file in which nothing of a loss scale, a norm or a loss was found, or not in order."""


def read_history(path: Path, progress: Callable[[int], object] = lambda _: None) -> History:
    """Return the history in a file, or in a tracker's folder.

    Args:
        path: the file of a watched run, a console log, JSON Lines, CSV, ``trainer_state.json``, TensorBoard's events
            or an offline run of Weights & Biases; text may be compressed by gzip.
        progress: is told from time to time how many bytes have been read; where it returns True, no more are.

    Raises:
        FileNotFoundError, PermissionError; ImportError: a tracker that is not installed; DamagedFileError;
        NothingReadError: no number of a run in it, or steps in no order.
    """
    torn: list[str] = []
    history = _read(path, progress, torn)
    history.notes.extend(torn)
    if not len(history.step):
        raise NothingReadError(
            f"{path}: found no loss scale, gradient norm, or training loss{_instead(path)}; expected lines such "
            "as 'step: 10, loss: 2.3, loss_scale: 65536, grad_norm: 1.2', or a file that ampsim.runs.watch wrote"
        )
    return history


def _instead(path: Path) -> str:
    """Return in words what a file has that holds no run; nothing if it is text like any other."""
    if path.is_dir():
        return ": the folder has no *tfevents* file and no *.wandb"
    torn: list[str] = []
    lines = list(itertools.islice(_lines(path, lambda _: None, torn), 20))
    first = next((line for line in lines if line.strip()), "")
    if not first:
        return ": the compressed file is damaged" if torn else ": the file is empty"
    if "\0" in first or first.count("\ufffd") * 10 > len(first):
        return ": the file is not text"
    if any(
        first.count(each) and as_number(first.split(each)[-1]) is not None for each in SEPARATORS
    ):
        return ": the first line of a table must name its columns, such as step,loss,scale, but it has numbers"
    return ""


def _read(path: Path, progress: Callable[[int], object], torn: list[str]) -> History:
    if path.is_dir() or "tfevents" in path.name or path.suffix == ".wandb":
        return read_tracker(path)
    lines = _lines(path, progress, torn)
    head = list(itertools.islice(lines, 20))
    if head[0].startswith('{"run":') and _is_own(path):
        return read_own(path)
    everything, source = itertools.chain(head, lines), str(path)
    first = next((line for line in head if line.strip()), "")
    if first.lstrip().startswith("{") and '"log_history"' in "".join(head):
        return _of_objects(source, "HF Trainer", everything)
    if first.lstrip().startswith("{") and path.suffix != ".ipynb" and parsed(first):
        program = next(
            (each["name"] for each in PROGRAMS if each["mark"].search(first)), "JSON Lines"
        )
        return history_of(source, program, json_rows(everything))
    if first.lstrip().startswith(("{", "[")) and path.suffix == ".json":
        return _of_objects(source, "JSON", everything)
    if path.suffix == ".ipynb":
        history = read_text(source, _printed("".join(everything)))
        history.notes.append(
            "Line numbers refer to the output of the notebook's cells, not to the file."
        )
        return history
    for separator in SEPARATORS:
        if separator in first and _is_table(first, head, separator):
            return history_of(source, "CSV", csv_rows(everything, separator))
    return read_text(source, everything)


def _of_objects(source: str, program: str, lines: Iterable[str]) -> History:
    history = history_of(source, program, object_rows(lines))
    history.notes.append("The line number of a record is that of its last line.")
    return history


def _printed(notebook: str) -> Iterator[str]:
    """Yield what the cells of a notebook printed; of a table in HTML a line per row."""
    cells: Any = (parsed(notebook) or {}).get("cells", ())
    with contextlib.suppress(AttributeError, TypeError):  # of another file of this name
        for output in itertools.chain.from_iterable(cell.get("outputs", ()) for cell in cells):
            shown = output.get("text") or output.get("data", {}).get("text/html", "")
            rows = re.sub(r"\s*\n\s*(?=<)", "", "".join(shown)).replace("<tr", "\n<tr")
            yield from re.sub("<[^>]*>", "", re.sub("</t[hd]>", " | ", rows)).splitlines(
                keepends=True
            )


def _lines(path: Path, progress: Callable[[int], object], torn: list[str]) -> Iterator[str]:
    """Yield the lines, each with its end; one that is longer than `LINE` in pieces that end where a number does not.

    A carriage return ends a line, too. An archive that is torn is read up to there, and `torn` says so.
    """
    rest, read = "", 0
    try:
        with path.open("rb") as file, _decoded(file) as text:
            while line := text.readline(LINE):
                read += len(line)
                if (
                    read >> 22 != (read - len(line)) >> 22 and progress(file.tell()) is True
                ):  # every 4 Mi
                    torn[:] = [
                        f"Interrupted: only the first {read:,} characters of the log were read."
                    ]
                    return
                line, rest = rest + line, ""
                if len(line) >= LINE and line[-1] not in "\r\n":
                    cut = max(line.rfind(mark) for mark in " ,") + 1
                    line, rest = line[:cut], line[cut:][:LINE]
                yield line
    except TORN as error:
        torn[:] = [f"The compressed file is damaged, and was read up to the damage ({error})."]
    yield rest


def _decoded(file: BinaryIO, layers: int = 3) -> TextIO:
    """Return a log's text, of a compressed one what is in so many layers at most."""
    begin = file.read(2)
    file.seek(0)
    if begin == b"\x1f\x8b" and layers:
        return _decoded(cast("BinaryIO", gzip.open(file)), layers - 1)
    return io.TextIOWrapper(file, "utf-16" if begin in UTF16 else "utf-8", "replace", newline="")


def _is_own(path: Path) -> bool:
    with contextlib.suppress(ValueError):  # somebody else's JSON Lines may begin with "run" too
        return read_run(path) is not None
    return False


def _is_table(first: str, head: list[str], separator: str) -> bool:
    """Return whether a line names columns, and cells below it are numbers; a sentence may have its comma, too."""
    named = kinds(entry_of((name, 1.0) for name in first.split(separator))) & {
        "loss",
        "scale",
        "norm",
    }
    below = (cell for line in head[head.index(first) + 1 :] for cell in line.split(separator))
    return (
        "=" not in first
        and ":" not in first
        and bool(named)
        and any(as_number(cell) is not None for cell in below)
    )
