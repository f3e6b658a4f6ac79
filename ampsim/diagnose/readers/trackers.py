"""Files of trackers, by the trackers' own packages: TensorBoard's events and Weights & Biases' offline runs."""

import json
from collections.abc import Iterator
from pathlib import Path

from ampsim.diagnose.history import History, HistoryBuilder
from ampsim.diagnose.readers.fields import entry_of


def read_tensorboard(path: Path) -> History:
    """Return the history of an event file, or of a folder of them.

    Raises:
        ImportError: tensorboard is not installed.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise ImportError(f"{path} is TensorBoard's; to read it: pip install tensorboard") from error
    steps: dict[int, dict[str, object]] = {}
    for file in [path] if path.is_file() else sorted(path.rglob("*tfevents*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                number = tensor_util.make_ndarray(value.tensor)
                if number.size == 1 and number.dtype.kind in "fiu":
                    steps.setdefault(event.step, {})[value.tag] = number.item()
    return _history(str(path), "TensorBoard", iter(sorted(steps.items())))


def read_wandb(path: Path) -> History:
    """Return the history of a ``.wandb`` file, or of the folder of an offline run that has one.

    Raises:
        ImportError: wandb is not installed.
    """
    try:
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal.datastore import DataStore
    except ImportError as error:
        raise ImportError(f"{path} is Weights & Biases'; to read it: pip install wandb") from error
    store = DataStore()
    store.open_for_scan(str(path if path.is_file() else next(path.glob("*.wandb"))))

    def rows() -> Iterator[tuple[int, dict[str, object]]]:
        number = 0
        while (data := store.scan_data()) is not None:
            record = vars(wandb_internal_pb2)["Record"]()  # made when it is imported
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                yield number, items
                number += 1

    return _history(str(path), "Weights & Biases", rows())


def _history(source: str, program: str, rows: Iterator[tuple[int, dict[str, object]]]) -> History:
    builder = HistoryBuilder(source, program)
    for number, values in rows:
        entry = entry_of(values)
        step = entry.pop("step", None)
        if entry.keys() & {"scale", "norm", "loss", "skipped"}:
            builder.add(number if step is None else int(step), **entry)
    return builder.finish()
