"""What ends a law that lasts too long: an alarm, which interrupts Python code and waits for a lock."""

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AGAIN = 1.0  # seconds between one alarm and the next: the first is lost where Python swallows exceptions
_TESTING = str(Path(__file__).parents[1])


class OverdueError(BaseException):
    """A law lasts longer than its limit. No Exception, so that nobody on the way takes it for the scaler's."""


@contextmanager
def alarm(limit: float) -> Iterator[None]:
    """Raise OverdueError in this thread after so many seconds; 0 is never.

    Nothing is raised in another thread than the main one, on a system without alarms, and where somebody else has set
    one.
    """
    main = threading.current_thread() is threading.main_thread()
    if not limit or not main or not hasattr(signal, "setitimer") or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def ring(_number: int, _frame: object) -> None:
        raise OverdueError(f"did not end within {limit:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def place(error: BaseException) -> str:
    """Return where the scaler was when an alarm rang: what the kit called last, and the calls from there on."""
    *calls, _ring = traceback.extract_tb(error.__traceback__)
    after = 1 + max(index for index, call in enumerate(calls) if call.filename.startswith(_TESTING))
    theirs = [*calls[after : after + 3], *calls[after + 3 :][-1:]] or calls[-1:]
    return ", ".join(f"{Path(call.filename).name}:{call.lineno} in {call.name}" for call in theirs)
