"""A machine that makes no more threads ends a run, and the next run is not disturbed."""

import threading

import pytest

from ampsim.testing.scheduler import Scheduler, attempt, run
from tests.testing.programs import nothing_special


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
