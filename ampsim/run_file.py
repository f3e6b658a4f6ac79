"""The file of a watched run: JSON Lines that grow during training.

Theory of operation
-------------------
::

    {"run": {...}, "format": 1}                                   versions, device, settings
    {"step": 0, "loss_scale": 65536.0, "skipped": false, "grad_norm": 0.31}
    {"step": 1, "loss_scale": 65536.0, "skipped": true, "nonfinite": {"fc.weight": "has inf"}}
    {"run": {...}, "format": 1}                                   the program was restarted
    {"step": 2, "loss_scale": 32768.0, "skipped": false, "grad_norm": 0.29}

Each line is passed to the operating system before `RunFile.append` returns, so a killed process loses no appended
record. A kill or a full disk can only truncate the last line; readers skip this line, and the next start removes it.
While a file is open for writing, no other process can open it, if the file system has locks. A forked child closes the
file, so a worker that outlives its run does not block the next start. Numbers are written as `ampsim.records` writes
them, so inf and NaN are preserved.

A restarted run continues at `RunFile.next_step`, one after the last record. A run that resumes from a checkpoint may
pass an earlier step; earlier records stay in the file, and the record written last for a step is used.

A record has ``step``; the other fields may be absent:

========================  ==============================================================================
``step``                  int, number of the step, counted from 0; skipped steps count
``loss_scale``            float, the loss scale of the step's gradients; absent without a scaler
``skipped``               bool, whether the step of any optimizer was skipped
``optimizers``            with several optimizers: for each, whether its step was skipped; null without a step
``grad_norm``             float, the 2-norm of all unscaled gradients; with a scaler, before clipping
``loss``                  float, the unscaled loss, if it was logged
``nonfinite``             parameter -> "has inf" or "has nan", for unscaled gradients that are not finite
``exponent_histograms``   in sampled steps: parameter -> result of `pack_counts` for its unscaled gradient
``warning``               str, e.g. that no parameter changed for many steps
========================  ==============================================================================

Other keys are values that the user logged.
"""

import errno
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from ampsim.core.files import DamagedFileError, append, try_lock
from ampsim.records import AnyPath, Record, decode, encode

FORMAT = 1
LOWEST = -149
"""The binade of float32's smallest subnormal: index 1 of a histogram of 280 bins."""
BINS = 280


class RunFile:
    """A run's file, open for appending; ``with`` closes it.

    Args:
        path: New file, empty file, or file of an earlier start of the same run.
        run: Header of the run, JSON data with str keys.

    Raises:
        BlockingIOError: If another process is writing the file.
        ValueError: If the file is not the file of a run; it is not changed.
    """

    next_step = 0
    """The step after the last step in the file when it was opened; 0 in a new file."""

    def __init__(self, path: AnyPath, run: Mapping[str, object]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = _line({"run": dict(run), "format": FORMAT})
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if not try_lock(self._handle):
                raise BlockingIOError(
                    errno.EWOULDBLOCK,
                    f"{self.path}: another run is writing this file; pass another name",
                )
            self._go_on()
            self._write(line)
        except BaseException:
            self.close()
            raise
        _open.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: Mapping[str, object]) -> None:
        """Write one record.

        Raises:
            OSError: If the disk is full; the file then has no part of the record.
            TypeError: If `ampsim.records.encode` does not support the type of a value.
            ValueError: If `ampsim.records.encode` does not support a value.
        """
        self._write(_line(record))

    def close(self) -> None:
        """Close the file. Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _write(self, line: bytes) -> None:
        if self._handle < 0:
            raise ValueError(f"{self.path} is closed; create another RunFile to continue")
        append(self._handle, line)

    def _go_on(self) -> None:
        """Check that the file is a run's, remove a truncated last line, and find `next_step`."""
        if not os.fstat(self._handle).st_size:  # as of a pipe and a device
            return
        with mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ) as file:
            first = file.readline()
            if first.endswith(b"\n"):
                _header(self.path, first)
            elif not first.startswith(b'{"run":'):
                raise _not_a_run(self.path, first)
            end = line_end = file.rfind(b"\n", 0) + 1
            while line_end and not self.next_step:
                start = file.rfind(b"\n", 0, line_end - 1) + 1
                self.next_step, line_end = _step_after(file[start:line_end]), start
        os.ftruncate(self._handle, end)


_open: weakref.WeakSet[RunFile] = weakref.WeakSet()


def _close_all() -> None:
    for file in list(_open):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


def read_run(path: AnyPath) -> Record:
    """Return the header of a run; reads only the first line.

    Args:
        path: File of a run.

    Returns:
        dict: The header.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not the file of a run.
    """
    with Path(path).open("rb") as file:
        return _header(Path(path), file.readline())


def records(path: AnyPath) -> Iterator[Record]:
    """Yield the records one by one; a truncated last line is skipped.

    Args:
        path: File of a run.

    Yields:
        dict: Each record, in file order.

    Raises:
        DamagedFileError: If a line before the last is not a record.
        ValueError: If the file is not the file of a run.
    """
    yield from (record for _, record in numbered(path))


def numbered(path: AnyPath) -> Iterator[tuple[int, Record]]:
    """Yield each record with its line number; restarts add header lines."""
    path = Path(path)
    with path.open("rb") as file:
        _header(path, file.readline())
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                return
            if "step" in (record := _record(path, number, line)):
                yield number, record


def _record(path: Path, number: int, line: bytes) -> Record:
    try:
        record: Record = decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(
            path, number, f"not JSON ({error})", "one JSON object per line"
        ) from error
    if not isinstance(record, dict) or not record.keys() & {"step", "run"}:
        raise DamagedFileError(path, number, "no step", "a record with a step")
    for name, (is_one, expected) in _KINDS.items() if "step" in record else ():
        if (record.get(name) is not None or name == "step") and not is_one(record[name]):
            raise DamagedFileError(path, number, f"{name}={record[name]!r:.60}", expected)
    return record


def _is_number(value: object) -> bool:
    """Return whether a value is a float, or an int that fits into a float."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**1023)


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_list_of_skips(value: object) -> bool:
    return isinstance(value, list) and all(each is None or isinstance(each, bool) for each in value)


def _is_text_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _are_counts_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())


_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "step": (_is_step, "a whole number of at least 0"),
    **dict.fromkeys(
        ("loss_scale", "grad_norm", "loss"), (_is_number, "a number that a float can hold")
    ),
    "skipped": (lambda value: isinstance(value, bool), "true or false"),
    "optimizers": (_is_list_of_skips, "true, false, or null for each"),
    "nonfinite": (_is_text_by_name, "text by parameter"),
    "exponent_histograms": (_are_counts_by_name, "packed counts by parameter"),
    "warning": (lambda value: isinstance(value, str), "text"),
}
"""Check and description of each field of a record, if it is present and not null."""


def pack_counts(counts: npt.NDArray[np.int64]) -> Record:
    """Pack a histogram of 280 bins (zeros, binades 2^-149 to 2^127, inf, NaN), without empty ends."""
    binades = np.flatnonzero(counts[1 : BINS - 2])
    first, last = (int(binades[0]), int(binades[-1]) + 1) if len(binades) else (0, 0)
    return {
        "zeros": int(counts[0]),
        "lowest": LOWEST + first,  # the binade of the first count
        "counts": counts[1 + first : 1 + last].tolist(),
        "inf": int(counts[BINS - 2]),
        "nan": int(counts[BINS - 1]),
    }


def unpack_counts(packed: Mapping[str, object]) -> npt.NDArray[np.int64]:
    """Unpack a histogram of `pack_counts`.

    Args:
        packed: Result of `pack_counts`.

    Returns:
        Array of shape ``(280,)`` and dtype int64.

    Raises:
        ValueError: If a key is missing, or a count is outside the binades of float32.
    """
    counts = np.zeros(BINS, np.int64)
    try:
        ends = [packed["zeros"], packed["inf"], packed["nan"]]
        counts[[0, BINS - 2, BINS - 1]] = np.asarray(ends, np.int64)
        values, first = (
            np.asarray(packed["counts"], np.int64),
            int(str(packed["lowest"])) - LOWEST + 1,
        )
        if first < 1 or first + len(values) > BINS - 2:
            raise ValueError(
                f"lowest={packed['lowest']} with {len(values)} counts: expected binades from -149 to 127"
            )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(
            f"a histogram with {sorted(packed)}: expected the result of pack_counts"
        ) from error
    counts[first : first + len(values)] = values
    return counts


def _step_after(line: bytes) -> int:
    """Return the step after that of a record; 0 if the line is no record."""
    try:
        step = decode(line.decode())["step"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return 0
    return step + 1 if type(step) is int and step >= 0 else 0


def _line(record: Mapping[str, object]) -> bytes:
    return f"{encode(record)}\n".encode()


def _header(path: Path, line: bytes) -> Record:
    try:
        header = decode(line.decode())
        run, form = header["run"], header["format"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise _not_a_run(path, line) from error
    if not isinstance(run, dict) or form != FORMAT:
        raise _not_a_run(path, line)
    return run


def _not_a_run(path: Path, line: bytes) -> ValueError:
    beginning = line[:40].decode(errors="replace").strip()
    return ValueError(
        f"{path} begins with {beginning!r}: expected the file of a watched run, which begins with "
        f'{{"run": ...}}; for a training log use `ampsim explain`; for a new run pass another name'
    )
