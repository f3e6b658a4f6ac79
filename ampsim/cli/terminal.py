"""What the command line reads and writes: consoles, refusals, ``NAME=VALUE``, and a reader that may have gone."""

import io
import os
import sys
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

out = Console(soft_wrap=True, highlight=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def print_table(table: Table) -> None:
    """Print a table; a pipe has no width to fit."""
    (out if out.is_terminal else Console(width=200)).print(table)


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave with status 2."""
    err.print(f"ampsim: {message}", markup=False)
    raise typer.Exit(2)


class _Output(io.FileIO):
    """A file whose reader may go: what comes after is dropped, so that the exit status still says what was found."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def open_output() -> None:
    """Let the standard output lose its reader, and show what its encoding lacks as an escape code."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  as long as the process lives
        return
    raw = _Output(sys.stdout.fileno(), "wb", closefd=False)
    line_buffering = raw.isatty()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), sys.stdout.encoding, errors="backslashreplace", line_buffering=line_buffering
    )


def drop_output() -> None:
    """Send what is still to be written nowhere, where the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def setting(option: str, text: str, *words: str) -> tuple[str, Any]:
    """Return the name and value of ``NAME=VALUE``: a number, true, false, none or one of `words`; else ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{option} {text!r}: expected NAME=VALUE, e.g. interval=2")
    meaning: dict[str, object] = {"true": True, "false": False, "none": None, **{word: word for word in words}}
    if value.lower() in meaning:
        return name, meaning[value.lower()]
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    raise ValueError(f"{option} {text!r}: expected a number, {', '.join(meaning)} after '='")
