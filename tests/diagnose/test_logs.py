"""What `ampsim explain` must say of each log in `logs.jsonl`, and what it must not say.

A row of the file has the lines of a log and what is true of it. `file` is the log's name, where
that matters.

- `verdict` is the verdict that it must have; `not` has verdicts that are false of it.
- `found` has the kinds of findings that must be reported, each with the numbers that it must have.
- `absent` has kinds that are false of the log; `unsaid` has text that is false of it.
- `skips` is the number of skipped steps that the log proves: no more and no fewer.
- `rows`, `step`, `loss`, `scale`, and `norm` are what its lines say; null for no number.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampsim.diagnose.explain import explain, in_words
from ampsim.diagnose.history import History
from ampsim.diagnose.readers.sniff import NothingReadError, read_history

DATA = Path(__file__).with_name("logs.jsonl")
LOGS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]
COLUMNS = ("step", "loss", "scale", "norm")


def read(log: dict[str, Any], folder: Path) -> History | None:
    """Return the history of a log; None if no run is in it."""
    path = folder / log.get("file", "train.log")
    path.write_text("".join(f"{line}\n" for line in log["log"]), "utf-8", newline="")
    try:
        return read_history(path)
    except NothingReadError:
        return None


@pytest.mark.parametrize("log", LOGS, ids=[log["id"] for log in LOGS])
def test_a_log_is_read_and_explained(log: dict[str, Any], tmp_path: Path) -> None:
    history = read(log, tmp_path)
    assert log.get("rows", history and history.rows) == (history.rows if history else 0)
    if history is None:
        assert "verdict" not in log
        return

    explanation = explain(history)
    assert log.get("verdict", explanation.verdict) == explanation.verdict
    assert explanation.verdict not in log.get("not", [])

    found: dict[str, list[dict[str, Any]]] = {}
    for each in explanation.statements:
        found.setdefault(each.kind, []).append(numbers(each))
    for kind, wanted in log.get("found", {}).items():
        assert any(each.items() >= wanted.items() for each in found.get(kind, [])), (kind, found)
    assert found.keys().isdisjoint(log.get("absent", []))

    proved = found["skips"][0]["skips"] if "skips" in found else 0
    assert log.get("skips", proved) == proved
    text = in_words(explanation)
    assert not [part for part in log.get("unsaid", []) if part in text]

    for name in log.keys() & set(COLUMNS):
        values = [math.nan if value is None else float(value) for value in log[name]]
        np.testing.assert_array_equal(getattr(history, name), values, name)


def numbers(statement: Any) -> dict[str, Any]:
    """Return the place of a statement, and each of its numbers: the lower bound."""
    bounds = {name: value for name, value in statement.numbers.items() if isinstance(value, tuple)}
    lower = {name: low for name, (low, _) in bounds.items()}
    return {"first": statement.first, "last": statement.last, "unit": statement.unit, **lower}
