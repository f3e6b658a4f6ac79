"""Ctrl-C, timeouts of test runners, and a machine that makes no more threads."""

import signal
import threading
from collections.abc import Iterator

import pytest

from ampsim.testing.scheduler import Scheduler, attempt, run
from tests.testing.programs import nothing_special

in_main_thread = pytest.mark.skipif(
    not hasattr(signal, "pthread_kill")
    or threading.current_thread() is not threading.main_thread(),
    reason="signals meet the main thread",
)


@pytest.fixture(autouse=True)
def _ctrl_c_is_not_ignored() -> Iterator[None]:
    """A process started in a shell's background ignores SIGINT, and so do the workers it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@in_main_thread
def test_ctrl_c_ends_at_switch_point() -> None:
    before = signal.getsignal(signal.SIGINT)
    log = []

    def program(c: Scheduler) -> None:
        c.spawn("worker", c.sync.Event().wait)
        signal.raise_signal(signal.SIGINT)
        log.append("not yet")
        c.point("now")
        log.append("too late")

    with pytest.raises(KeyboardInterrupt):
        attempt(program)
    assert log == ["not yet"]
    assert signal.getsignal(signal.SIGINT) is before


def join_threads(*names: str) -> None:
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join()


def test_thread_start_failure_ends_run(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "one too many":
            raise RuntimeError("can't start new thread")
        start(thread)

    def program(c: Scheduler) -> None:
        c.spawn("first", lambda: c.spawn("one too many", c.point, "x").join()).join()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        attempt(program)
    join_threads("first")
    monkeypatch.undo()
    run(nothing_special)
