"""The table of formats: what programs print, and what `explain` says about it. See ``formats.toml``."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TOLD = (
    r"^(?!.*\b(?:[Ii]f|[Ww]hen(?:ever)?|[Ww]ill|[Ss]hould|[Nn]o|[Ww]ithout)\b)"
    r"(?!.*\b(?:[Nn]ote|[Hh]andling|[Ff]ix(?:ed|es)?|[Bb]ug|False)\b).*?"
)
TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8").replace("'TOLD", f"'{TOLD}")
)

NUMBER = (
    r"[-+]?(?:\d[\d_]*(?! \d{3}(?![\w.]))(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN][aA][nN]|(?:[iI]nf|INF)(?:inity)?)"
    r"(?!\d|(?<![a-zA-Z])\.[\d.]|[,'’~^–-]\d|\*\*|\s*(?:[-=]>|[^\x00-\x7f\s]+)\s*\d)"
)
"""A number that stands alone: neither 65,536 nor 65 536, 2**16, 8..4, 8-4, 8 -> 4 or 8 から 4 has one."""
LIMITS = SimpleNamespace(**TABLE["limits"])  # what is too many, too low, too short
NAMED: dict[str, dict[str, Any]] = {
    each["name"]: each for each in TABLE["program"]
}  # program -> its row


def _compiled(table: str, key: str = "pattern") -> list[dict[str, Any]]:
    return [each | {key: re.compile(each[key].replace("NUMBER", NUMBER))} for each in TABLE[table]]


PROGRAMS, SENTENCES, ERRORS = (
    _compiled("program", "mark"),
    _compiled("sentence"),
    _compiled("error"),
)
SPELLINGS = _compiled("spelling")


def pattern(name: str) -> re.Pattern[str]:
    """Return a pattern of a line of console text."""
    text, any_case = TABLE["pattern"].get(name), TABLE["pattern"]["any_case"].get(name)
    return re.compile(
        (any_case or text).replace("NUMBER", NUMBER), re.ASCII | (re.IGNORECASE if any_case else 0)
    )


def spelled(text: str) -> str:
    """Return a line with names and numbers as most programs write them."""
    for each in SPELLINGS:
        if each["word"] in text:
            text = each["pattern"].sub(each["as"], text)
    return text


def error_in(text: str, program: str = "") -> dict[str, Any] | None:
    """Return the known error in a text: its name, cause, fix, and source; None if there is none.

    An error that many programs raise is known only if `program` or the text names the program of the explanation.
    """
    known = (error for error in ERRORS if error["pattern"].search(text))
    return next((error for error in known if error.get("of", "") in f"{program} {text}"), None)
