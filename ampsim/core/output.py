"""Output of a command: shows text from outside safely; handles closed pipes, full disks, and
limited encodings.
"""

import io
import os
import sys
import unicodedata
from collections.abc import Callable
from typing import Any


class _Output(io.FileIO):
    """A file that drops output after its reader closes the pipe, so that the exit status is kept."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


# Unicode categories of characters that steer a terminal, reverse the order of others (U+202E), or
# have no width (U+200B): control, format, surrogate, line separator, and paragraph separator.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""Return a text from outside, e.g. the name of a parameter, in a form that is safe to show.

    Control, bidirectional, and zero-width characters and lone surrogates become escape codes. Line
    feeds and tabs stay.

    >>> print(printable("weight\u202ecba\x1b[2J"))
    weight\u202ecba\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _INVISIBLE:
        return character
    return character.encode("unicode_escape").decode()


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command; return its exit status, 2 if its output cannot be written, or 130 at Ctrl-C.

    Characters that the encoding lacks are written as escape codes. A closed pipe, e.g. of `head`,
    is no error. Other errors are printed to standard error.
    """
    _open_output()
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes again at exit
        print(
            f"{name}: cannot write the output: {error}; free disk space, or redirect the output",
            file=sys.stderr,
        )
        return 2


def _open_output() -> None:
    """Replace standard output by one that handles these cases."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        return
    try:
        raw = _Output(sys.stdout.fileno(), "wb", closefd=False)
    except io.UnsupportedOperation:
        return  # no file: replaced by a test
    line_buffering = raw.isatty()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        sys.stdout.encoding,
        errors="backslashreplace",
        line_buffering=line_buffering,
    )
