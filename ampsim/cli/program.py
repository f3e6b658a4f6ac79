"""A program under test: it answers each input line with one output line, within a time limit."""

import collections
import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Self

LONGEST = 1 << 20
"""Characters of an answer; a longer one is an error."""
ONE = "one output line per input line"
_TAIL = 10


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
        self._limit, self._over, self._errors = limit, False, collections.deque[str](maxlen=_TAIL)
        self._answers: queue.Queue[str] = queue.Queue(maxsize=2)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(  # noqa: S603 - the user's own
            list(command),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        work = (
            (self._write, self._process.stdin),
            (self._read, self._process.stdout),
            (self._listen, self._process.stderr),
        )
        self._threads = [
            threading.Thread(target=target, args=(stream,), daemon=True) for target, stream in work
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        """Return the program."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the program and its children."""
        self._lines.put(None)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL) if hasattr(
                os, "killpg"
            ) else self._process.kill()
        self._process.wait()
        self._over = True
        with contextlib.suppress(queue.Empty):
            while True:  # a reader may wait for a free slot
                self._answers.get_nowait()
        for thread in self._threads:
            thread.join(
                1.0
            )  # a process outside the group may hold a pipe; the daemon thread ends with ours

    def ask(self, line: str) -> str:
        """Return the answer to a line; raise ProgramError if there is none or it came too early."""
        is_quiet = self._answers.empty()
        if is_quiet:
            self._lines.put(line)
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
        self._lines.put(None)
        try:
            if more := self._answers.get(timeout=self._limit):
                raise self._error(f"{more[:80]!r}: more output lines than input lines")
            if self._process.wait(self._limit):
                raise self._error(self._ending(), "status 0 when its input ends")
        except (queue.Empty, subprocess.TimeoutExpired):
            raise self._error(
                f"still running {self._limit:g} s after the end of its input", "it to exit"
            ) from None

    def _ending(self) -> str:
        """Return how the program ended."""
        try:
            status = self._process.wait(self._limit)
        except subprocess.TimeoutExpired:
            return "its output is closed"
        self._threads[-1].join(self._limit)
        return f"it ended with {f'signal {signal.Signals(-status).name}' if status < 0 else f'exit status {status}'}"

    def _error(self, problem: str, expected: str = ONE) -> ProgramError:
        stderr = (
            f"; its standard error:\n    {'    '.join(self._errors).rstrip()}"
            if self._errors
            else ""
        )
        return ProgramError(f"{problem}; expected {expected}{stderr}")

    def _write(self, stream: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError):  # the program closed its input
            while (line := self._lines.get()) is not None:
                stream.write(line + "\n")
                stream.flush()
        with contextlib.suppress(OSError):
            stream.close()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            while (line := stream.readline(LONGEST)) and not self._over:
                self._answers.put(line)
        self._answers.put("")

    def _listen(self, stream: IO[str]) -> None:
        with stream:
            while line := stream.readline(LONGEST):
                self._errors.append(line)
