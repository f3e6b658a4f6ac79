"""Texts of errors and warnings about loss scaling, with cause and fix; standard library only."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

_WORDS = (
    "already",
    "closure use",
    "cuda is not available",
    "detected",
    "diverged",
    "dtype",
    "error",
    "exception",
    "exit",
    "found",
    "fp16",
    "gradient clipping",
    "half",
    "has no attribute",
    "in summary",
    "inf checks",
    "infinite",
    "initialized before",
    "interrupt",
    "invalid",
    "minimum loss",
    "nans was",
    "nans were",
    "ending training",
    "non-finite",
    "non_finite",
    "not implemented",
    "probability tensor",
    "returned",
    "scale is none",
    "stopping",
    "summary histogram",
    "too small",
    "unsafe to autocast",
    "unscale",
)
"""Words of which each known error has one; most lines have none."""
_QUOTES = str.maketrans(dict.fromkeys('`"\u2018\u2019\u201c\u201d', "'"))
"""Each kind of quotation mark -> the one of the patterns: programs and pages change it."""


@cache
def error_texts() -> list[dict[str, Any]]:
    """Return the table: id, pattern, cause, fix, source, and `warning` or `of` where they apply."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["error"]
    return [
        row | {"pattern": re.compile(row["pattern"], re.IGNORECASE)} for row in rows
    ]


def error_id_in(line: str) -> str:
    """Return the id of the known error in a line; "" if there is none. `of` is not checked."""
    low = line.lower()
    if not any(word in low for word in _WORDS):
        return ""
    plain = line.translate(_QUOTES)
    known = (row["id"] for row in error_texts() if row["pattern"].search(plain))
    return next(known, "")


def error_by_id(identifier: str) -> dict[str, Any]:
    """Return the row of an id."""
    return next(row for row in error_texts() if row["id"] == identifier)
