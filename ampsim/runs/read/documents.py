"""Read JSON documents: a trainer's state, lists of records, and what the cells of a notebook
printed.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from ampsim.runs.read.history import History
from ampsim.runs.read.rows import RowReader
from ampsim.runs.read.text import Rows, TextReader

LONGEST_DOCUMENT = 1 << 27
"""Characters of a document that is parsed whole."""


def read_document(source: str, text: str) -> History | None:
    """Return the history in a JSON document; None if the text is no JSON document with records.

    Args:
        source: Path of the file.
        text: The whole file.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, dict) and isinstance(document.get("cells"), list):
        printed = Rows(_printed(document["cells"]))
        history = TextReader(source).read(printed.numbered())
        history.notes.append(
            "Line numbers refer to the output of the notebook's cells, not to the file."
        )
        return history
    reader = RowReader(History(source))
    for number, record in enumerate(_records(document), 1):
        reader.add(number, record)
    history = reader.finish()
    history.notes.append("Line numbers count the records of the document.")
    return history


def _records(value: object, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the dictionaries in a document, outer ones first."""
    if depth > 8:
        return
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            if isinstance(part, dict | list):
                yield from _records(part, depth + 1)


def _printed(cells: list[Any]) -> Iterator[str]:
    """Yield the lines that cells of a notebook printed; of a table in HTML one line for each row."""
    for cell in cells:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else ():
            yield from _lines_of(output) if isinstance(output, dict) else ()


def _lines_of(output: dict[str, Any]) -> Iterator[str]:
    data = output.get("data")
    data = data if isinstance(data, dict) else {}
    shown = output.get("text") or data.get("text/html") or data.get("text/plain") or ""
    text = "".join(map(str, shown)) if isinstance(shown, list) else str(shown)
    if "<tr" in text:
        rows = re.sub(r"\s*\n\s*(?=<)", "", text).replace("<tr", "\n<tr")
        text = re.sub(r"<[^>]*>", "", re.sub(r"\s*</t[hd]>(?=\s*<t[hd])", "|", rows))
    yield from text.splitlines(keepends=True)
    if text and not text.endswith("\n"):
        yield "\n"
