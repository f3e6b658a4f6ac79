"""The standard output of a command: its reader may go, its disk may be full, its encoding may lack a character."""

import io
import os
import sys
from collections.abc import Callable

# What would steer a terminal, or what XML refuses, as its code: for `str.translate`.
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command, and return its exit status, or 1 if its output could not be written.

    What the encoding lacks is written as an escape code. A reader that has gone, as `head` does, is no error to speak
    of; any other reason is said on standard error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # it is None where the caller has closed it
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = command()
        if sys.stdout:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
        if not isinstance(error, BrokenPipeError):
            print(f"{name}: error: {error}: expected an output that can be written", file=sys.stderr)
        return 1
    return status
