"""One thread of control and what is known of it."""

import _thread
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

Body = Callable[[], object]  # what a task does
Ready = Callable[[], bool] | None  # whether a task can go on; None: it can


class AbandonedError(BaseException):
    """A task is not needed any more; raised at its switch point, so that its thread ends."""


class Held(Protocol):
    """A lock that a task may hold."""

    def drop(self) -> int:
        """Free it, however often it was acquired; return how often."""
        ...


class Task:
    """One thread of control. Written only by the task that holds the baton."""

    def __init__(
        self, index: int, name: str, body: Body, *, daemon: bool = False
    ) -> None:
        self.index = index
        self.name = name
        self.body = body
        self.daemon = daemon
        # Locked: the task waits. Whoever picks it releases it.
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        # Made when the task is first picked.
        self.thread: threading.Thread | None = None
        self.op = "begin"
        self.subject: object = ""
        self.ready: Ready = None
        self.timed = False  # a wait whose timeout may fire
        self.fired = False  # it did
        self.pending: BaseException | None = None  # to be raised at the next switch
        self.injected: BaseException | None = None  # the last one raised so
        self.finished = False
        self.holds: list[Held] = []  # locks, oldest first
        self.handle: object = None  # the Thread object that the code under test knows

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        return "can run" if self.ready is None else "blocked"

    @property
    def waits_for(self) -> str:
        if self.state != "blocked":
            return "-"
        status = getattr(self.subject, "status", "")
        return f"{self.op} {self.subject}" + (f" ({status})" if status else "")


@contextmanager
def one_core() -> Iterator[None]:
    """Keep the calling thread, and those it starts, on the core it runs on: explorations run 2 to 5
    times faster.

    Only one task runs at a time anyway, and handing over within a core is quicker. Thread pools of
    libraries that first start in here stay on that core, so start them before. Does nothing where
    there is no Linux.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    before = os.sched_getaffinity(0)
    core = ctypes.CDLL(None).sched_getcpu()
    try:
        os.sched_setaffinity(0, {core} & before or before)
        yield
    finally:
        os.sched_setaffinity(0, before)
