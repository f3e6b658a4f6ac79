"""Find the lines of a script that change something."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ampsim.testing.script_checks.trace import is_scripts, shown


class Lines:
    """A tracer of Python's, which looks after each line of the script at what is watched."""

    def __init__(self) -> None:
        self._watched: list[tuple[Callable[[], object], list[str]]] = []
        self._values: list[object] = []
        self._line = ""

    def watch(self, look: Callable[[], object]) -> list[str]:
        """Return a list that gets each line after which `look` returns another value."""
        self._watched.append((look, []))
        self._values.append(look())
        return self._watched[-1][1]

    def start(self) -> None:
        """Look after each line from here on, in the functions that run now and in those that they call."""
        if sys.gettrace() is not None:
            return  # a debugger's, or that of coverage
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if is_scripts(frame.f_code.co_filename):
                frame.f_trace = self
                self._line = self._line or f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        sys.settrace(self)

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        """Look, if a line of the script has ended."""
        if not is_scripts(frame.f_code.co_filename):
            return None
        self._look()
        self._line = f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"
        return self

    def _look(self) -> None:
        for index, (look, lines) in enumerate(self._watched):
            value = look()
            if value != self._values[index]:
                self._values[index] = value
                if self._line not in lines:
                    lines.append(self._line)
