"""What ends a check that lasts too long: an alarm, which interrupts Python code and waits for a lock.

Theory of operation
-------------------
A busy machine may take minutes for what takes a second, and that is no scaler's fault. So the limit is one of CPU time,
and the clock's is `WALL` times that, for what waits and computes nothing. An import that is torn in two leaves half a
module behind, for whatever is judged next: an alarm that rings in one waits for its end, and then nobody knows how
long the check itself took.
"""

import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

AGAIN = 1.0  # seconds between one alarm and the next: the first is lost where Python swallows exceptions
SOON = 0.01  # seconds at least until it is asked again how much was computed
WALL = 5.0  # seconds by the clock for each of the limit's, which are of CPU time
_IMPORT = "<frozen importlib._bootstrap>"
_TESTING = str(Path(__file__).parents[1])


class OverdueError(BaseException):
    """A check lasts longer than its limit. No Exception, so that nobody on the way takes it for the scaler's.

    Attributes:
        imports: whether a module was being imported when the limit was reached.
    """

    def __init__(self, text: str, *, imports: bool = False) -> None:
        super().__init__(text)
        self.imports = imports


class CannotJudgeError(Exception):
    """A target cannot be checked: two of its checks, or an import, did not end. No check failed by that."""


@contextmanager
def alarm(limit: float) -> Iterator[None]:
    """Raise OverdueError in this thread after so many seconds of CPU time, or `WALL` times as many; 0 is never.

    Nothing is raised in another thread than the main one, on a system without alarms, and where somebody else has set
    one.
    """
    main = threading.current_thread() is threading.main_thread()
    if (
        not limit
        or not main
        or not hasattr(signal, "setitimer")
        or signal.getitimer(signal.ITIMER_REAL)[0]
    ):
        yield
        return
    began, computed, imports, quiet = time.monotonic(), time.process_time(), False, False

    def ring(_number: int, frame: FrameType | None) -> None:
        nonlocal imports, quiet
        late, left = (
            time.monotonic() - began >= WALL * limit,
            limit - (time.process_time() - computed),
        )
        if quiet:
            return
        if not late and left > 0:
            signal.setitimer(
                signal.ITIMER_REAL, max(left, SOON), AGAIN
            )  # one thread cannot compute it sooner
            return
        importing = _imports(frame)
        imports = imports or importing
        if late or not importing:
            quiet = True  # what rings before this is raised finds the same
            _forget_what_is_torn()
            spent = f"{limit:g} s of CPU time" if left <= 0 else f"{WALL * limit:g} s"
            quiet = False
            raise OverdueError(f"did not end within {spent}", imports=imports)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN)
    try:
        try:
            yield
        finally:
            quiet = True  # an alarm that rings here is the last
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _imports(frame: FrameType | None) -> bool:
    """Return whether a module is being imported in this frame or in one that waits for it."""
    while frame is not None and frame.f_code.co_filename != _IMPORT:
        frame = frame.f_back
    return frame is not None


def _forget_what_is_torn() -> None:
    """Remove partly imported modules and their submodules, so that the next import runs them again.

    Python itself forgets the module that raises, and keeps those below it: the next import would find them too early.
    """
    torn = [
        name
        for name, each in [*sys.modules.items()]
        if getattr(getattr(each, "__spec__", None), "_initializing", 0)
    ]
    for name in [*sys.modules]:
        if any(name.startswith(f"{each}.") for each in torn):
            del sys.modules[name]


def place(error: BaseException) -> str:
    """Return where the scaler was when an alarm rang: the last call of ampsim.testing, and those from there on."""
    *calls, _ring = traceback.extract_tb(error.__traceback__)
    after = 1 + max(index for index, call in enumerate(calls) if call.filename.startswith(_TESTING))
    theirs = [*calls[after : after + 3], *calls[after + 3 :][-1:]] or calls[-1:]
    return ", ".join(f"{Path(call.filename).name}:{call.lineno} in {call.name}" for call in theirs)
