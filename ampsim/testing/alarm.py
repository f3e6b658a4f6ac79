"""What ends a check that lasts too long: an alarm, which interrupts Python code and waits for a
lock.

A busy machine may take minutes for what takes a second, and that is no scaler's fault. So the limit
is one of CPU time, and the clock's is `WALL` times that, for what waits and computes nothing.
"""

import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ampsim.testing.lines import TESTING

# seconds between one alarm and the next: the first is lost where Python swallows exceptions
AGAIN = 1.0
SOON = 0.01  # seconds at least until the alarm looks again how much was computed
WALL = 5.0  # seconds by the clock for each of the limit's, which are of CPU time


class OverdueError(BaseException):
    """A check lasts longer than its limit. No Exception, so that nobody on the way takes it for the
    scaler's.
    """


class CannotJudgeError(Exception):
    """A target cannot be checked: two of its checks did not end. No check failed by that."""


@contextmanager
def alarm(limit: float) -> Iterator[None]:
    """Raise OverdueError in this thread after so many seconds of CPU time, or `WALL` times as many;
    0 is never.

    Nothing is raised in another thread than the main one, on a system without alarms, and where
    somebody else has set one.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (limit and main and hasattr(signal, "setitimer")) or signal.getitimer(
        signal.ITIMER_REAL
    ) != (0.0, 0.0):
        yield
        return
    began = time.monotonic()
    computed = time.process_time()
    is_over = False

    def ring(*_: object) -> None:
        left = limit - (time.process_time() - computed)
        if is_over:
            return
        if left > 0 and time.monotonic() - began < WALL * limit:
            # One thread cannot compute it sooner.
            signal.setitimer(signal.ITIMER_REAL, max(left, SOON), AGAIN)
            return
        spent = f"{WALL * limit:g} s"
        if left <= 0:
            spent = f"{limit:g} s of CPU time"
        raise OverdueError(f"did not end within {spent}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN)
    try:
        try:
            yield
        finally:
            is_over = True  # an alarm that rings here is the last
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the calls after the last one in ampsim.testing: the first three, and the last."""
    calls = traceback.extract_tb(error.__traceback__)
    frames = [call for call in calls if call.filename != __file__]  # without the alarm
    ours = [n for n, frame in enumerate(frames) if frame.filename.startswith(TESTING)]
    theirs = frames[ours[-1] + 1 :] if ours else frames
    if len(theirs) > 4:
        theirs[3:-1] = []
    return theirs or frames[-1:]


def place(error: BaseException) -> str:
    """Return where the scaler was when an alarm rang."""
    places = []
    for frame in user_frames(error):
        file = Path(frame.filename).name
        places.append(f"{file}:{frame.lineno} in {frame.name}")
    return ", ".join(places)
