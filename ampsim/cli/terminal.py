"""Consoles, error messages, and ``NAME=VALUE`` options of the command line."""

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.table import Table

from ampsim.core.extras import BROUGHT_BY, line_to_type
from ampsim.core.files import check_own, replacing
from ampsim.core.output import printable
from ampsim.runs.read.error_texts import error_id_in

# the message of an import, and advice that the command for an extra replaces
ABSENT = re.compile(r"(.*[Nn]o module (?:named )?'(\w+)[^']*')(?:; .*)?")


# what a file or a value that the user passes may raise anywhere
USAGE = (OSError, ImportError, RecursionError, ValueError)


class _Console(Console):
    """A console that prints control characters as escape codes."""

    def render(
        self, renderable: Any, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else segment._replace(text=printable(segment.text))
            )


out = _Console(soft_wrap=True, highlight=False, emoji=False, markup=False)
err = _Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False)


def bold_table(*headings: str, title: str | None = None) -> Table:
    """Return a table with bold headings and no lines."""
    return Table(*headings, title=title, box=None, pad_edge=False, header_style="bold")


def print_table(table: Table) -> None:
    """Print a table; 200 columns wide if the output is no terminal."""
    (out if out.is_terminal else _Console(width=200, markup=False)).print(table)


def fail(message: str, status: int = 2) -> NoReturn:
    """Print an error and exit.

    For a missing extra, add the `pip install` command; for a known error, its page.
    """
    if (absent := ABSENT.fullmatch(message)) and absent[2] in BROUGHT_BY:
        message = f"{absent[1]}; {line_to_type(absent[2])}"
    err.print(f"ampsim: {message}")
    if error := error_id_in(message):
        err.print(f"The cause and the fix of this error: docs/errors/{error}.md")
    raise typer.Exit(status)


def write_own(path: Path, mark: str, data: bytes, *, force: bool = False) -> None:
    """Replace a file that ampsim wrote, which has `mark` near its start; exit if that fails."""
    with usage_errors():
        check_own(path, mark, force=force)
        with replacing(path) as file:
            file.write(data)


def find_local_modules() -> None:
    """Let imports find modules in the current folder, as `python -m` does."""
    if "" not in sys.path:
        sys.path.insert(0, "")


@contextmanager
def usage_errors(*others: type[Exception]) -> Iterator[None]:
    """Print what the user passed and the code within does not take, and exit.

    Pass TypeError for code that checks types of the user's values or calls the user's code;
    elsewhere it is a defect of ampsim. With AMPSIM_TRACEBACK=1 in the environment each error is
    raised.
    """
    kinds: tuple[type[Exception], ...] = (*USAGE, *others)
    try:
        yield
    except kinds as error:
        if os.environ.get("AMPSIM_TRACEBACK") == "1":
            raise
        if isinstance(error, OSError) and error.filename and error.strerror:
            fail(f"{error.filename}: {error.strerror}; check the path")
        fail(str(error))


def settings(option: str, texts: Iterable[str] | None, *words: str) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` options.

    A value is a number (also 2**16), true, false, none, or some of `words`, with commas; others
    raise ValueError.
    """
    parsed: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(
                f"{option} {text!r}: expected NAME=VALUE, e.g. growth_interval=2"
            )
        if name in parsed:
            raise ValueError(
                f"{option} {text!r}: {name} is already {parsed[name]!r}; pass each name once"
            )
        parsed[name] = _value(f"{option} {text!r}", value, words)
    return parsed


def _value(option: str, value: str, words: Sequence[str]) -> object:
    meaning: dict[str, object] = {
        "true": True,
        "false": False,
        "none": None,
        **{word: word for word in words},
    }
    if {*value.split(",")} <= {*words}:
        return value
    if value.lower() in meaning:
        return meaning[value.lower()]
    if power := re.fullmatch(r"2(\.0)?\*\*(-?\d{1,3})", value):
        return math.ldexp(1.0, int(power[2]))
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    raise ValueError(f"{option}: expected a number, {', '.join(meaning)} after '='")
