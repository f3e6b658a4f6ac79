"""A program that is judged: it is given lines, one by one, and answers each with one line, within a time."""

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
"""Characters of an answer; what is longer is none."""
ONE = "one line per line that it reads"
_TAIL = 10


class ProgramError(RuntimeError):
    """A program that does not keep to one line for a line: says what it did, and what was expected."""


class Program:
    """A running program. Leaving its context ends it, and all that it started."""

    def __init__(self, command: Sequence[str], limit: float) -> None:
        """Start it; an answer may take `limit` seconds. OSError: there is no such program."""
        self._limit, self._over, self._said = limit, False, collections.deque[str](maxlen=_TAIL)
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
            threading.Thread(target=each, args=(stream,), daemon=True) for each, stream in work
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and all that it started."""
        self._lines.put(None)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL) if hasattr(
                os, "killpg"
            ) else self._process.kill()
        self._process.wait()
        self._over = True
        with contextlib.suppress(queue.Empty):
            while True:  # what reads may wait for room
                self._answers.get_nowait()
        for thread in self._threads:
            thread.join(
                1.0
            )  # longer where a process that has left its group holds a pipe: the thread dies with ours

    def ask(self, line: str) -> str:
        """Return the line that answers a line. ProgramError: there is none, or there was one before."""
        asked = self._answers.empty()
        if asked:
            self._lines.put(line)
        try:
            answer = self._answers.get(timeout=self._limit)
        except queue.Empty:
            raise self._wrong(
                f"no answer within {self._limit:g} s (--time-limit)", f"{ONE}, flushed"
            ) from None
        if not answer:
            raise self._wrong(self._ending(), f"{ONE}, until its input ends")
        if not asked:
            raise self._wrong(f"{answer[:80]!r}: written unasked")
        return answer

    def end(self) -> None:
        """End its input. ProgramError: it writes more, fails, or goes on."""
        self._lines.put(None)
        try:
            if more := self._answers.get(timeout=self._limit):
                raise self._wrong(f"{more[:80]!r}: more lines than it was given")
            if self._process.wait(self._limit):
                raise self._wrong(self._ending(), "status 0 when its input ends")
        except (queue.Empty, subprocess.TimeoutExpired):
            raise self._wrong(
                f"goes on {self._limit:g} s after its input has ended", "its end"
            ) from None

    def _ending(self) -> str:
        """Return in words how it ended."""
        try:
            status = self._process.wait(self._limit)
        except subprocess.TimeoutExpired:
            return "its output is closed"
        self._threads[-1].join(self._limit)
        return f"it ended with {f'signal {signal.Signals(-status).name}' if status < 0 else f'exit status {status}'}"

    def _wrong(self, seen: str, expected: str = ONE) -> ProgramError:
        said = f"; it said\n    {'    '.join(self._said).rstrip()}" if self._said else ""
        return ProgramError(f"{seen}; expected {expected}{said}")

    def _write(self, stream: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it reads no more
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
                self._said.append(line)
