"""Tables: JSON Lines, CSV, and Hugging Face's ``trainer_state.json``."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping

from ampsim.diagnose.history import History, HistoryBuilder
from ampsim.diagnose.readers.fields import entry_of, in_company
from ampsim.diagnose.wording import counted

LONGEST_OBJECT = 1 << 20  # characters of an object that are kept while its end has not come
Row = Mapping[str, object]
_OBJECT = re.compile(r"\{[^{}]*\}")


def parsed(text: str) -> Row | None:
    """Return the JSON object that a text is; None if it is none."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def read_json_lines(source: str, lines: Iterable[str]) -> History:
    """Return the history of a file with one JSON object per line; other lines are counted and passed over."""
    rows = ((number, parsed(line)) for number, line in enumerate(lines, 1) if not line.isspace() and line)
    return _history(source, "JSON Lines", rows, "for want of JSON")


def read_csv(source: str, lines: Iterable[str], separator: str = ",") -> History:
    """Return the history of a table whose first line names the columns, such as Lightning's ``metrics.csv``.

    Where semicolons part the columns, a comma is a decimal one.
    """
    plain = (line.replace("\0", "") for line in lines)
    if separator == ";":
        plain = (line.replace(",", ".") for line in plain)
    return _history(source, "CSV", _cells(csv.DictReader(plain, delimiter=separator)), "as damaged")


def _cells(rows: "csv.DictReader[str]") -> Iterator[tuple[int, Row | None]]:
    """Yield the cells that are not empty, and None for a row with a field without an end."""
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:
            yield rows.line_num, None
        else:
            yield rows.line_num, {name: value for name, value in row.items() if value}


def _history(source: str, program: str, rows: Iterable[tuple[int, Row | None]], why: str) -> History:
    """Return the history of numbered rows, of which None is counted and left out."""
    builder, damaged = HistoryBuilder(source, program), 0
    for number, row in rows:
        if row is None:
            damaged += 1
        else:
            add_row(builder, row, line=number)
    if damaged:
        builder.notes.append(f"Left out, {why}: {counted(damaged, 'line')}.")
    return builder.finish()


def read_objects(source: str, lines: Iterable[str]) -> History:
    """Return the history of a JSON file of many lines, such as Hugging Face's ``trainer_state.json``.

    Each innermost object is an entry if it has its numbers, so that a file of any size is read, and a torn one too.
    """
    builder, rest = HistoryBuilder(source, "JSON"), ""
    for number, line in enumerate(lines, 1):
        if '"log_history"' in line:
            builder.program = "HF Trainer"
        rest += line
        if "}" not in line:
            rest = rest[-LONGEST_OBJECT:]
            continue
        for text in _OBJECT.findall(rest):
            add_row(builder, parsed(text) or {}, line=number)
        rest = rest[rest.rfind("}") + 1 :]
    return builder.finish()


def add_row(builder: HistoryBuilder, row: Row, *, line: int = 0, step: float = math.nan) -> float:
    """Add named values; return their step, which is the given one if they have none."""
    entry = entry_of((str(name), value) for name, value in row.items())
    if not math.isnan(step):
        entry.setdefault("step", step)
    step = entry.get("step", step)
    entry = in_company(entry)
    if math.isnan(step) and entry.get("epoch", math.nan).is_integer():
        step, builder.unit = entry["epoch"], "epoch"
    if kinds := {"means", "bare"} & entry.keys():
        builder.settings |= dict.fromkeys(kinds, True)
    if "skipped" in entry:
        builder.settings["count"] = "unsaid"
    if entry.keys() & {"scale", "norm", "loss", "skipped"}:
        entry["line"] = line or math.nan
        builder.add(step if 0 <= step < 2**53 else math.nan, entry)
    return step
