"""Places in the code of a user, and the lines of it that change something."""

import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

# Places are shown relative to it, also after a script changes its folder.
START = Path.cwd()
TESTING = f"{Path(__file__).parent}{os.sep}"
# Wherever it is installed, it is no library of the user's.
OWN = f"{Path(__file__).parents[1]}{os.sep}"
TORCH = f"-packages{os.sep}torch{os.sep}"
STANDARD = sysconfig.get_paths()["stdlib"]


class Place(NamedTuple):
    """A line of the user's that runs.

    Attributes:
        user: file:line.
        library: The same of the library that this line has called; "" for none.
    """

    user: str
    library: str = ""

    def __str__(self) -> str:
        """As "train.py:41", or "train.py:41 in accelerate/optimizer.py:165"."""
        return f"{self.user} in {self.library}" if self.library else self.user


def where() -> Place:
    """Return the innermost line of the user's that runs now."""
    library = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        line = frame.f_lineno
        if is_users(name):
            return Place(f"{shown(name)}:{line}", library)
        if "-packages" in name and TORCH not in name and not name.startswith(OWN):
            library = library or f"{name.rpartition('-packages/')[2]}:{line}"
        frame = frame.f_back
    return Place(library or "unknown place")


def running_code() -> CodeType | None:
    """Return the code of the user's function that runs now; None for none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame and frame.f_code


def is_users(file: str) -> bool:
    """Return whether a file is a user's, and not of a package, of Python, or of ampsim."""
    return "-packages" not in file and not file.startswith((OWN, STANDARD, "<"))


def shown(file: str) -> str:
    """Return a path as reports show it: relative if that is shorter."""
    relative = os.path.relpath(file, START)
    return min(relative, file, key=len)


class Change(NamedTuple):
    """What a line of a user has changed.

    Attributes:
        what: As it is watched.
        where: The line.
    """

    what: str
    where: Place


class LineTracer:
    """A tracer of Python's, which looks after each line of the user's at what is watched.

    Attributes:
        changes: The keys, in their order.
    """

    def __init__(self, watched: Mapping[str, Callable[[], object]]) -> None:
        self._watched = watched
        self._values = {what: look() for what, look in watched.items()}
        self._line: tuple[CodeType, int] | None = None
        self.changes: dict[Change, None] = {}

    def start(self) -> None:
        """Look after each line from here on, in the functions that run now and in those that they
        call.
        """
        if sys.gettrace() is not None:
            return  # a debugger's, or that of coverage
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if is_users(frame.f_code.co_filename):
                frame.f_trace = self
                self._line = self._line or (frame.f_code, frame.f_lineno)
            frame = frame.f_back
        sys.settrace(self)

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        """Look, if a line of the user's has ended."""
        if not is_users(frame.f_code.co_filename):
            return None
        self._look()
        if (
            event == "return"
            and frame.f_back
            and is_users(frame.f_back.f_code.co_filename)
        ):
            frame = frame.f_back  # whose line goes on
        self._line = frame.f_code, frame.f_lineno
        return self

    def _look(self) -> None:
        if self._line is None:
            return
        for what, look in self._watched.items():
            value = look()
            old = self._values[what]
            self._values[what] = value
            if value and value != old:  # what is cleared is no change
                code, number = self._line
                place = Place(f"{shown(code.co_filename)}:{number}")
                self.changes.setdefault(Change(what, place))
