"""The standard output of a command: its reader may go, its disk may be full, its encoding may lack a character."""

import io
import os
import sys
from collections.abc import Callable
from typing import Any


class _Output(io.FileIO):
    """A file whose reader may go: what comes after is dropped, so that the exit status still says what was found."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


# What would steer a terminal, or what XML refuses, as its code: for `str.translate`.
CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command, and return its exit status, or 2 if its output could not be written, or 130 at Ctrl-C.

    What the encoding lacks is written as an escape code. A reader that has gone, as `head` does, changes nothing; any
    other reason is said on standard error.
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
        print(
            f"{name}: cannot write what was found: {error}; expected room for it", file=sys.stderr
        )
        return 2


def _open_output() -> None:
    """Put an output that bears all this in the place of the standard one."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  as long as the process lives
        return
    try:
        raw = _Output(sys.stdout.fileno(), "wb", closefd=False)
    except io.UnsupportedOperation:
        return  # it is a test's, and no file
    line_buffering = raw.isatty()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        sys.stdout.encoding,
        errors="backslashreplace",
        line_buffering=line_buffering,
    )
