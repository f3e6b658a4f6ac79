"""Files of trackers: TensorBoard's events and Weights & Biases' offline runs, decoded by the trackers' own packages."""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from ampsim.core.extras import line_to_type
from ampsim.diagnose.history import History
from ampsim.diagnose.readers.tables import history_of


def read_tracker(path: Path) -> History:
    """Return the history of TensorBoard's event file or of W&B's ``.wandb`` file, or of the folder of a run.

    Raises:
        ImportError: the tracker is not installed; ValueError: a file that it has not written so.
    """
    try:
        if path.suffix == ".wandb" or any(path.glob("*.wandb")):
            return history_of(
                str(path), "Weights & Biases", enumerate(wandb_rows(path)), steps=True
            )
        return history_of(
            str(path), "TensorBoard", iter(sorted(_tensorboard_rows(path).items())), steps=True
        )
    except (ImportError, OSError):
        raise
    except Exception as error:  # of a damaged file no two packages raise the same
        raise ValueError(
            f"{path} is damaged: {type(error).__name__}: {error}; expected a file that the tracker wrote; copy it again"
        ) from error


def _tensorboard_rows(path: Path) -> dict[int, dict[str, object]]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise ImportError(
            f"{path} is a TensorBoard file; to read it: {line_to_type('tensorboard')}"
        ) from error
    steps: dict[int, dict[str, object]] = {}
    for file in [path] if path.is_file() else sorted(path.rglob("*tfevents*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                array = tensor_util.make_ndarray(value.tensor)
                if array.size == 1:
                    item = array.item()
                    item = item.decode(errors="replace") if isinstance(item, bytes) else item
                    steps.setdefault(event.step, {})[value.tag.removesuffix("/text_summary")] = item
    return steps


def wandb_rows(path: Path) -> Iterator[Mapping[str, object]]:
    """Yield what each call of a run's ``log`` wrote."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise ImportError(
            f"{path} is a Weights & Biases file; to read it: {line_to_type('wandb')}"
        ) from error
    record_type = vars(wandb_internal_pb2)["Record"]  # made when it is imported
    with (path if path.is_file() else next(path.glob("*.wandb"))).open("rb") as file:
        for data in _log_records(file):
            if items := record_type.FromString(data).history.item:
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }


def _log_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records of a ``.wandb`` file, a log as LevelDB writes it, of which wandb has no reader in Python.

    Blocks of 32 KiB hold parts of records, each behind its checksum, length and kind: 1 is a whole record, 2, 3 and 4
    are its first, a middle and its last part. The first block begins with 7 bytes of its own. A torn end is left out.
    """
    file.read(7)
    record = b""
    while True:
        left = 32768 - file.tell() % 32768
        if left < 7:
            file.read(left)
        _, length, kind = struct.unpack("<IHB", file.read(7).ljust(7, b"\0"))
        part = file.read(length)
        if not kind or len(part) < length:
            return
        record = part if kind in (1, 2) else record + part
        if kind in (1, 4):
            yield record
