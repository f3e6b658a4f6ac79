"""Tables: JSON Lines, CSV, and Hugging Face's ``trainer_state.json``."""

import csv
import json
from collections.abc import Iterable, Mapping

from ampsim.diagnose.history import History, HistoryBuilder
from ampsim.diagnose.readers.fields import entry_of


def read_json_lines(source: str, lines: Iterable[str]) -> History:
    """Return the history of a file with one JSON object per line; other lines are counted and passed over."""
    builder, damaged = HistoryBuilder(source, "JSON Lines"), 0
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            damaged += bool(line.strip())
            continue
        if isinstance(row, dict):
            _add(builder, number, row)
    if damaged:
        builder.notes.append(f"{damaged} lines are not JSON and were left out.")
    return builder.finish()


def read_csv(source: str, lines: Iterable[str]) -> History:
    """Return the history of a table whose first line names the columns, such as Lightning's ``metrics.csv``."""
    builder = HistoryBuilder(source, "CSV")
    for number, row in enumerate(csv.DictReader(lines)):
        _add(builder, number, {name: value for name, value in row.items() if value})
    return builder.finish()


def read_trainer_state(source: str, text: str) -> History:
    """Return the history of Hugging Face's ``trainer_state.json``."""
    builder = HistoryBuilder(source, "HF Trainer")
    for number, row in enumerate(json.loads(text)["log_history"]):
        if isinstance(row, dict):
            _add(builder, number, row)
    return builder.finish()


def _add(builder: HistoryBuilder, number: int, row: Mapping[str, object]) -> None:
    entry = entry_of({str(name): value for name, value in row.items()})
    step = entry.pop("step", None)
    if entry.keys() & {"scale", "norm", "loss", "skipped"}:
        builder.add(number if step is None else int(step), **entry)
