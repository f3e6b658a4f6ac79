"""Rows of named values, and the history that they make: JSON Lines, CSV, ``trainer_state.json``, trackers' files."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping

from ampsim.diagnose.history import History, HistoryBuilder
from ampsim.diagnose.readers.fields import NOT_TRAINING, entry_of, in_company, with_loss
from ampsim.diagnose.wording import counted

LONGEST_OBJECT = 1 << 20  # characters of an object that are kept while its end has not come
Row = Mapping[str, object]
Rows = Iterator[tuple[int, Row | None]]
"""Each with its line, or its step; None is a damaged one."""
_OBJECT = re.compile(r"\{[^{}]*\}")


def history_of(source: str, program: str, rows: Rows, *, steps: bool = False) -> History:
    """Return the history of rows; damaged ones are counted and left out. `steps`: their numbers are steps, no lines."""
    builder, damaged = HistoryBuilder(source, program), 0
    for number, row in rows:
        if row is None:
            damaged += 1
            continue
        if "ampsim/step" in row:  # of the loop; Weights & Biases counts the calls of its log
            row = {**row, "iteration": row["ampsim/step"]}
        step = _add(builder, row, line=0 if steps else number, step=number if steps else math.nan)
        if steps and any(
            name.startswith("ampsim/") for name in row
        ):  # as ampsim.runs.watch logs it
            builder.settings["values"] = True
            if isinstance(bad := row.get("ampsim/nonfinite"), str):
                names = (each.rpartition(" has ") for each in bad.split(", "))
                builder.bad[int(step)] = {name: f"has {what}" for name, _, what in names}
            if isinstance(alarm := row.get("ampsim/warning"), str):
                builder.alarms.append((int(step), alarm))
    if damaged:
        builder.notes.append(f"Ignored, because not a table row: {counted(damaged, 'line')}.")
    return builder.finish()


def _add(builder: HistoryBuilder, row: Row, *, line: int, step: float) -> float:
    """Add named values; return their step, which is the given one if they have none."""
    entry = entry_of((str(name), value) for name, value in row.items())
    if not math.isnan(step):
        entry.setdefault("step", step)
    step = entry.get("step", step)
    entry = in_company(entry)
    if any(isinstance(value, str) and value.lower() in NOT_TRAINING for value in row.values()):
        return step  # of a validation
    builder.loss = with_loss(entry, builder.loss)
    by_epoch = math.isnan(step) and entry.get("epoch", math.nan).is_integer()
    step = entry["epoch"] if by_epoch else step
    if math.isnan(step) and builder.program == "CSV":
        builder.settings["mixed"] = True  # rows of a table may be of anything
    builder.settings |= dict.fromkeys({"means", "bare"} & entry.keys(), True)
    if "skipped" in entry:
        builder.settings["count"] = "unsaid"
    if not math.isfinite(entry.get("evaluated", 0.0)):
        builder.say("evaluation", line)
    if entry.keys() & {"scale", "norm", "loss", "skipped"}:
        builder.unit = "epoch" if by_epoch else builder.unit
        entry["line"] = line or math.nan
        builder.add(step if 0 <= step < 2**53 else math.nan, entry)
    return step


def parsed(text: str) -> Row | None:
    """Return the JSON object that a text is; None if it is none."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def json_rows(lines: Iterable[str]) -> Rows:
    """Yield the JSON object of each line."""
    return (
        (number, parsed(line))
        for number, line in enumerate(lines, 1)
        if not line.isspace() and line
    )


def csv_rows(lines: Iterable[str], separator: str) -> Rows:
    """Yield the cells that are not empty; the first line names them. Behind semicolons a comma is a decimal one."""
    decimal = "," if separator == ";" else "."
    rows = csv.DictReader(
        (line.replace("\0", "").replace(decimal, ".") for line in lines), delimiter=separator
    )
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field without an end
            yield rows.line_num, None
        else:
            yield rows.line_num, {name: value for name, value in row.items() if value}


def object_rows(lines: Iterable[str]) -> Rows:
    """Yield the innermost objects of a JSON file of many lines, so that one of any size is read, and a torn one too."""
    rest = ""
    for number, line in enumerate(lines, 1):
        rest += line
        if "}" not in line:
            rest = rest[-LONGEST_OBJECT:]
            continue
        yield from ((number, parsed(text) or {}) for text in _OBJECT.findall(rest))
        rest = rest[rest.rfind("}") + 1 :]
