"""Read the files of TensorBoard and of Weights & Biases' offline runs with the trackers' own
packages.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from ampsim.core.extras import line_to_type
from ampsim.runs.read.history import History
from ampsim.runs.read.rows import OWN, RowReader, as_number

_BLOCK = 32768


def is_tracker(path: Path) -> bool:
    """Return whether a path is a tracker's file or a folder."""
    return path.is_dir() or "tfevents" in path.name or path.suffix == ".wandb"


def read_tracker(path: Path) -> History:
    """Return the history in TensorBoard's event files or in W&B's ``.wandb`` file.

    Args:
        path: The file, or the folder of a run.

    Returns:
        The history; lines are numbers of records.

    Raises:
        ImportError: If the tracker's package is missing; the message has the ``pip install``
            command.
        ValueError: If the tracker's package cannot decode the file.
    """
    history = History(str(path))
    try:
        if path.suffix == ".wandb" or any(path.glob("*.wandb")):
            read_rows(history, enumerate(wandb_rows(path)))
        else:
            read_rows(history, sorted(_tensorboard_rows(path).items()))
    except (ImportError, OSError):
        raise
    except Exception as error:  # the packages raise many types for damaged files
        raise ValueError(
            f"{path} is damaged: {type(error).__name__}: {error}; expected a file that the "
            "tracker wrote; copy it again"
        ) from error
    return history


def read_rows(
    history: History, rows: Iterable[tuple[int, Mapping[str, object]]]
) -> None:
    """Add rows of a tracker to a history, each with the tracker's step."""
    reader = RowReader(history)
    for number, (step, row) in enumerate(rows, 1):
        reader.add(number, row, float(step))
        own = as_number(row.get(f"{OWN}step"))
        step = step if own is None else int(own)
        if text := row.get(f"{OWN}nonfinite"):
            parts = (part.partition(" has ") for part in str(text).split(", "))
            history.nonfinite[step] = {name: f"has {what}" for name, _, what in parts}
        if text := row.get(f"{OWN}warning"):
            history.warnings.append((step, str(text)))
    reader.finish()


def _tensorboard_rows(path: Path) -> dict[int, dict[str, object]]:
    """Return the scalars and texts of event files by step."""
    steps: dict[int, dict[str, object]] = {}
    files = [path] if path.is_file() else sorted(path.rglob("*tfevents*"))
    if not files:
        return steps
    try:
        from tensorboard.backend.event_processing.event_file_loader import (
            EventFileLoader,
        )
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise ImportError(
            f"{path} is a TensorBoard file; to read it: {line_to_type('tensorboard')}"
        ) from error
    for file in files:
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                array = tensor_util.make_ndarray(value.tensor)
                if array.size != 1:
                    continue
                item = array.item()
                text = (
                    item.decode(errors="replace") if isinstance(item, bytes) else item
                )
                steps.setdefault(event.step, {})[
                    value.tag.removesuffix("/text_summary")
                ] = text
    return steps


def wandb_rows(path: Path) -> Iterator[Mapping[str, object]]:
    """Yield what each call of a run's ``log`` wrote, by name."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise ImportError(
            f"{path} is a Weights & Biases file; to read it: {line_to_type('wandb')}"
        ) from error
    record_type = vars(wandb_internal_pb2)[
        "Record"
    ]  # created when the module is imported
    with (path if path.is_file() else next(path.glob("*.wandb"))).open("rb") as file:
        for data in _log_records(file):
            if items := record_type.FromString(data).history.item:
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }


def _log_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records of a ``.wandb`` file, which has the format of LevelDB's log.

    Blocks of 32 KiB hold parts of records. Each part follows its checksum, length, and type: 1 is a
    whole record; 2, 3, and 4 are the first, a middle, and the last part. The file begins with 7
    bytes of its own. A torn end is skipped.
    """
    file.read(7)
    record = b""
    while True:
        left = _BLOCK - file.tell() % _BLOCK
        if left < 7:
            file.read(left)
        _, length, kind = struct.unpack("<IHB", file.read(7).ljust(7, b"\0"))
        part = file.read(length)
        if not kind or len(part) < length:
            return
        record = part if kind in (1, 2) else record + part
        if kind in (1, 4):
            yield record
