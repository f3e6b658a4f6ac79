"""Texts of errors and warnings about loss scaling, with cause and fix; standard library only."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

_WORDS = re.compile(
    r"rror|already|stopping|ending|terminating|diverged|found|too small|returned nan|xception|etected|inf checks"
    r"|FP16 gradients|initialized before|_scale is None|CUDA is not available|dtype|Half|requires a GPU|16-mixed"
    r"|unsafe to autocast|NaNs? was produced|Loss is NaN|in summary|non_finite_check|Minimum loss|reached"
    r"|has no attribute|probability tensor|nvalid value \(|fp16 mixed precision|radient clipping"
    r"|unscale_|Closure use|is non-finite"
)


@cache
def error_texts() -> list[dict[str, Any]]:
    """Return the table: id, pattern, cause, fix, source, and `warning` or `of` where they apply."""
    table = tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    )
    return [row | {"pattern": re.compile(row["pattern"])} for row in table["error"]]


def error_in(text: str, context: str = "") -> dict[str, Any] | None:
    """Return the known error in a text; None if there is none.

    Args:
        text: A message, or a log with one.
        context: Other text of the log. An error that many programs raise is known only beside the
            name of the program that the explanation is about.

    Returns:
        A row of the table.
    """
    known = (row for row in error_texts() if row["pattern"].search(text))
    return next(
        (row for row in known if re.search(row.get("of", ""), f"{context} {text}")),
        None,
    )


def may_have_error(line: str) -> bool:
    """Return whether a line has a word of a known error."""
    return _WORDS.search(line) is not None


def error_id_in(line: str) -> str:
    """Return the id of the known error in a line; "" if there is none. `of` is not checked."""
    if not _WORDS.search(line):
        return ""
    return next((row["id"] for row in error_texts() if row["pattern"].search(line)), "")


def error_by_id(identifier: str) -> dict[str, Any]:
    """Return the row of an id."""
    return next(row for row in error_texts() if row["id"] == identifier)
