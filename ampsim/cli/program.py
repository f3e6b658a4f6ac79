"""A program under test: it answers each input line with one output line, within a time limit."""

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Self

LONGEST = 1 << 20
"""Characters of an answer; a longer one is an error."""
ONE = "one output line per input line"
_TAIL = 4096  # bytes of standard error that an error shows


class ProgramError(RuntimeError):
    """Raised for a program that does not write one output line per input line."""


class Program:
    """A running program; leaving its context kills it and its children."""

    def __init__(self, command: Sequence[str], limit: float) -> None:
        """Start a program.

        Args:
            command: Program and arguments.
            limit: Seconds that one answer may take.

        Raises:
            OSError: If the program cannot be started.
        """
        self._limit, self._over = limit, False
        self._answers: queue.Queue[str] = queue.Queue(maxsize=2)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(  # noqa: S603
            list(command),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()

    def __enter__(self) -> Self:
        """Return the program."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the program and its children."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # where there are no groups
        self._process.wait()
        self._over = True
        with contextlib.suppress(queue.Empty):
            while True:  # the reader may wait for a free slot
                self._answers.get_nowait()
        # A process outside the group may hold the pipe; the daemon thread ends with ours.
        self._reader.join(1.0)
        self._close_input()
        self._errors.close()

    def ask(self, line: str) -> str:
        """Return the answer to a line; raise ProgramError if there is none or it came too early."""
        is_quiet = self._answers.empty()
        if is_quiet and self._process.stdin:
            with contextlib.suppress(OSError):  # the program closed its input
                # A line fits into the pipe: the program has read the line before.
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=self._limit)
        except queue.Empty:
            raise self._error(
                f"no answer within {self._limit:g} s (--time-limit)", f"{ONE}, flushed"
            ) from None
        if not answer:
            raise self._error(self._ending(), f"{ONE}, until its input ends")
        if not is_quiet:
            raise self._error(f"{answer[:80]!r}: written before an input line")
        return answer

    def end(self) -> None:
        """Close the input; raise ProgramError if the program writes more, fails, or keeps running."""
        self._close_input()
        try:
            if more := self._answers.get(timeout=self._limit):
                raise self._error(f"{more[:80]!r}: more output lines than input lines")
            if self._process.wait(self._limit):
                raise self._error(self._ending(), "status 0 when its input ends")
        except (queue.Empty, subprocess.TimeoutExpired):
            raise self._error(
                f"still running {self._limit:g} s after the end of its input",
                "it to exit",
            ) from None

    def _close_input(self) -> None:
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _ending(self) -> str:
        """Return how the program ended."""
        try:
            status = self._process.wait(self._limit)
        except subprocess.TimeoutExpired:
            return "its output is closed"
        how = (
            f"signal {signal.Signals(-status).name}"
            if status < 0
            else f"exit status {status}"
        )
        return f"it ended with {how}"

    def _error(self, problem: str, expected: str = ONE) -> ProgramError:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _TAIL))
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-10:]
        stderr = "; its standard error:" if said else ""
        return ProgramError(
            "\n    ".join([f"{problem}; expected {expected}{stderr}", *said])
        )

    def _read(self, stream: IO[str]) -> None:
        with stream:
            while (line := stream.readline(LONGEST)) and not self._over:
                self._answers.put(line)
        self._answers.put("")
