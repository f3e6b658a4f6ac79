"""The file of a watched run: JSON Lines that grow during training.

Theory of operation
-------------------
::

    {"run": {...}, "format": 1}                                   versions, device, settings
    {"step": 0, "loss_scale": 65536.0, "skipped": false, "grad_norm": 0.31}
    {"step": 1, "loss_scale": 65536.0, "skipped": true, "nonfinite": {"fc.weight": "has inf"}}
    {"run": {...}, "format": 1}                                   the program was restarted
    {"step": 2, "loss_scale": 32768.0, "skipped": false, "grad_norm": 0.29}

Each line is passed to the operating system before `RunFile.append` returns, so a killed process
loses no appended record. A kill or a full disk can only truncate the last line; readers skip this
line, and the next start removes it. While a file is open for writing, no other process can open it,
if the file system has locks. A forked child closes the file, so a worker that outlives its run does
not block the next start. `ampsim.core.json_lines` writes the numbers, so inf and NaN are preserved.

A restarted run continues at `RunFile.next_step`, one after the last record. A run that resumes from
a checkpoint may pass an earlier step; earlier records stay in the file, and the record written last
for a step is used.

A record has ``step``; the other fields may be absent:

========================  ==============================================================================
``step``                  int, number of the step, counted from 0; skipped steps count
``loss_scale``            float, the loss scale of the step's gradients; absent without a scaler
``skipped``               bool, whether the step of any optimizer was skipped
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ampsim.core.files import DamagedFileError, append, try_lock
from ampsim.core.json_lines import (
    LONGEST,
    AnyPath,
    Record,
    decode,
    decode_object,
    encode,
)
from ampsim.core.lines import Lines

FORMAT = 1
BINS = 280  # of a histogram: zeros, 277 binades of float32, inf, NaN
LOWEST = -149  # exponent of the first binade, that of the smallest subnormal


class RunFile:
    """The file of a run, open for appending; ``with`` closes it.

    Args:
        path: New file, empty file, or file of an earlier start of the same run.
        run: Header of the run, JSON data with str keys.

    Attributes:
        path: The file.
        next_step: The step after the last step in the file when it was opened; 0 in a new file.

    Raises:
        BlockingIOError: If another process is writing the file.
        DamagedFileError: If the file is not the file of a run; it is not changed.
    """

    def __init__(self, path: AnyPath, run: Mapping[str, object]) -> None:
        self.path = Path(path)
        self.next_step = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        header = encode({"run": dict(run), "format": FORMAT})
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if not try_lock(self._handle):
                raise BlockingIOError(
                    errno.EWOULDBLOCK,
                    f"{self.path}: another run is writing this file; pass a file per process",
                )
            self._continue()
            append(self._handle, f"{header}\n".encode())
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

        Args:
            record: JSON data with a field ``step``.

        Raises:
            OSError: If the disk is full; the file then has no part of the record.
            TypeError: If `ampsim.core.json_lines.encode` does not support the type of a value.
            ValueError: If `encode` does not support a value, or the file is closed.
        """
        if self._handle < 0:
            raise ValueError(
                f"{self.path} is closed; create another RunFile to continue"
            )
        append(self._handle, f"{encode(record)}\n".encode())

    def close(self) -> None:
        """Close the file. Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _continue(self) -> None:
        """Check that the file is a run's, remove a truncated last line, and find `next_step`."""
        if not os.fstat(self._handle).st_size:  # also 0 of a pipe or a device
            return
        with mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ) as file:
            first = file.readline()
            if first.endswith(b"\n") or not first.startswith(b'{"run":'):
                _header(self.path, first.decode(errors="replace"))
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
        DamagedFileError: If the file is not the file of a run.
    """
    lines = Lines(path, longest=LONGEST, strict=True)
    return _header(lines.path, next(iter(lines), ""))


def records(path: AnyPath) -> Iterator[Record]:
    """Yield the records one by one; a truncated last line is skipped.

    Args:
        path: File of a run, plain or compressed by gzip.

    Yields:
        dict: Each record, in file order.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If the file is not the file of a run, or a line before the last is not a
            record.
    """
    yield from (record for _, record in numbered(path) if not is_header(record))


def is_header(record: Record) -> bool:
    """Return whether a line of the file of a run is the header of a start."""
    return "run" in record and "step" not in record


def numbered(path: AnyPath) -> Iterator[tuple[int, Record]]:
    """Yield each record, and the header of each later start, with its line number. See `records`."""
    lines = Lines(path, longest=LONGEST, strict=True)
    for line in lines:
        if lines.number == 1:
            _header(lines.path, line)
        elif line.endswith("\n"):
            record = decode_object(lines.path, lines.number, line)
            if not is_header(record) and not _is_step(record.get("step")):
                step = f"step={record.get('step')!r:.60}"
                expected = "a whole number of at least 0"
                raise DamagedFileError(lines.path, lines.number, step, expected)
            yield lines.number, record
    if not lines.number:
        _header(lines.path, "")


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def pack_counts(counts: npt.NDArray[np.int64]) -> Record:
    """Pack a histogram of shape ``(280,)``: zeros, binades 2^-149 to 2^127, inf, NaN; without empty
    ends.
    """
    binades = np.flatnonzero(counts[1:-2])
    first, last = (int(binades[0]), int(binades[-1]) + 1) if len(binades) else (0, 0)
    return {
        "zeros": int(counts[0]),
        "lowest": LOWEST + first,  # the binade of the first count
        "counts": counts[1 + first : 1 + last].tolist(),
        "inf": int(counts[-2]),
        "nan": int(counts[-1]),
    }


def unpack_counts(packed: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Unpack a histogram of `pack_counts`.

    Args:
        packed: Result of `pack_counts`.

    Returns:
        Array of shape ``(280,)`` and dtype int64.

    Raises:
        ValueError: If it is no result of `pack_counts`.
    """
    histogram = np.zeros(BINS, np.int64)
    try:
        histogram[[0, -2, -1]] = [packed[name] for name in ("zeros", "inf", "nan")]
        first, counts = packed["lowest"] - LOWEST + 1, packed["counts"]
        histogram[1:-2][first - 1 :][: len(counts)] = counts
    except (KeyError, TypeError, OverflowError, ValueError) as error:
        raise ValueError(
            f"a histogram {packed!r:.200}: {error}; expected the result of pack_counts"
        ) from error
    return histogram


def _step_after(line: bytes) -> int:
    """Return the step after that of a record; 0 if the line is no record."""
    try:
        step = decode(line.decode())["step"]
    except (ValueError, KeyError, TypeError):
        return 0
    return step + 1 if _is_step(step) else 0


def _header(path: Path, line: str) -> Record:
    try:
        header = decode(line)
        run, form = header["run"], header["format"]
    except (ValueError, KeyError, TypeError):
        run = form = None
    if not isinstance(run, dict) or form != FORMAT:
        raise DamagedFileError(
            path,
            1,
            f"begins with {line[:40].strip()!r}",
            'the file of a watched run, which begins with {"run": ...}',
            "for a training log use `ampsim explain`; for a new run pass another name",
        )
    return run
