"""`threading` and `queue` for code under test: the same names, one task at a time, every operation
a choice.

A class that takes its primitives from a namespace is tested by handing it this module; a class that
does not is tested by `Scheduler.patch`. Objects are made inside a run and belong to it. After the
run they still answer, but an operation that would have to wait raises `DeadlockError`.

Guarantees: Results, orders and refusals are those of `threading` and `queue`: waiters of a
    condition wake first come, first served; an interrupted or timed-out ``Condition.wait`` holds
    its lock again when it ends. A timeout may fire at any moment at which its wait could not end
    otherwise; its length means nothing.

Assumes:
    Nothing shares these objects with threads that the scheduler does not run.
"""

import queue as _queue
import threading as _threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty as Empty
from threading import get_native_id as get_native_id
from threading import local as local
from typing import TYPE_CHECKING, Any

from ampsim.testing.scheduler.locks import Condition as Condition
from ampsim.testing.scheduler.locks import Event as Event
from ampsim.testing.scheduler.locks import Lock as Lock
from ampsim.testing.scheduler.locks import Primitive, patient
from ampsim.testing.scheduler.locks import RLock as RLock
from ampsim.testing.scheduler.task_runner import active

if TYPE_CHECKING:
    from ampsim.testing.scheduler.task import Task


def __getattr__(name: str) -> object:
    if hasattr(_threading, name) or hasattr(_queue, name):
        raise AttributeError(
            f"{name}: not under the scheduler's control, and the real one would block the run"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Queue(Primitive):
    """`queue.Queue` without `join`; `put` waits as long as the queue is full."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__()
        self.maxsize = maxsize
        self.queue: deque[object] = deque()

    @property
    def status(self) -> str:
        return f"{len(self.queue)} items"

    def put(self, item: object) -> None:
        self._switch("put", self._has_room)
        self.queue.append(item)

    def _has_room(self) -> bool:
        return not 0 < self.maxsize <= len(self.queue)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        ready = patient(lambda: bool(self.queue), timeout, block)
        self._switch("get", ready, timed=timeout is not None)
        if not self.queue:
            raise Empty
        return self.queue.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        self._switch("qsize")
        return len(self.queue)

    def empty(self) -> bool:
        return self.qsize() == 0


SimpleQueue = Queue


class Thread(Primitive):
    """`threading.Thread`: may be subclassed; `ident` counts from 1 in the order of starting."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        assert group is None, "group argument must be None for now"  # noqa: S101
        super().__init__(name)
        self.name = self._label
        self._target = target
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})
        self._task: Task | None = None
        self.daemon = self._task_runner.running.daemon if daemon is None else daemon

    @property
    def status(self) -> str:
        if self._task is None:
            return "not started"
        return self._task.state

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.index + 1

    native_id = ident

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        self._task = self._task_runner.add(self.name, self.run, daemon=self.daemon)
        self._task.handle = self
        self._switch("start")

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is None:
            raise RuntimeError("cannot join thread before it is started")
        if task is self._task_runner.running and not self._task_runner.closed:
            raise RuntimeError("cannot join current thread")
        ready = patient(lambda: task.finished, timeout)
        self._switch("join", ready, timed=timeout is not None)

    def is_alive(self) -> bool:
        self._switch("is_alive")
        return self._task is not None and not self._task.finished


def current_thread() -> Thread:
    """Return the `Thread` of the task that runs."""
    task = active().running
    if task.handle is None:
        task.handle = main = Thread(name=task.name, daemon=task.daemon)
        main._task = task  # noqa: SLF001
    assert isinstance(task.handle, Thread)  # noqa: S101
    return task.handle


def get_ident() -> int:
    """Return a number that no other task of the run has: its place in the order of starting, from
    1.
    """
    return active().running.index + 1


def sleep(seconds: float) -> None:
    """Let the others go on. Wakes at any time, at no cost in time; polling loops with it do end."""
    active().switch("sleep", "", lambda: False, timed=True)
