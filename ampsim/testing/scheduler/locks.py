"""Locks, conditions and events whose waiting is up to the schedule; see
`ampsim.testing.scheduler.sync`.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ampsim.testing.scheduler.task import Ready
from ampsim.testing.scheduler.task_runner import active

if TYPE_CHECKING:
    from ampsim.testing.scheduler.task import Task

T = TypeVar("T")


def patient(ready: Ready, timeout: float | None, block: bool = True) -> Ready:
    """Return `ready`, or None for a call that does not wait: it looks once and goes on."""
    return ready if block and (timeout is None or timeout > 0) else None


class Primitive:
    """An object with what tables and traces show: a label, the same in every run, and a status."""

    def __init__(self, name: str | None = None) -> None:
        self._task_runner = active()
        self._label = name or self._task_runner.label(type(self).__name__)

    @property
    def status(self) -> str:
        return ""

    def _switch(self, op: str, ready: Ready = None, *, timed: bool = False) -> bool:
        return self._task_runner.switch(op, self, ready, timed=timed)

    def __str__(self) -> str:
        return self._label

    def __repr__(self) -> str:
        return f"<{self._label} {self.status}>"


class _Guard(Primitive):
    """A primitive that ``with`` acquires and releases."""

    acquire: Callable[..., bool]
    release: Callable[..., None]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Lockable(_Guard):
    """The common part of `Lock` and `RLock`. `depth` counts how often the owner acquired it."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: Task | None = None
        self.depth = 0

    @property
    def status(self) -> str:
        return "free" if self.owner is None else f"held by {self.owner.name}"

    def free(self) -> bool:
        return self.owner is None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        waits = blocking and timeout != 0
        op = "acquire" if waits and timeout < 0 else "try"
        self._switch(op, self.free if waits else None, timed=waits and timeout > 0)
        if not self.free():
            return False
        self.take(1)
        return True

    def take(self, depth: int) -> None:
        """Become the owner; the caller knows that it is free."""
        self.owner = self._task_runner.running
        self.depth = depth
        self.owner.holds.append(self)

    def drop(self) -> int:
        """Free it, however often it was acquired; returns the depth."""
        depth = self.depth
        self.depth = 0
        if self.owner is not None:
            self.owner.holds.remove(self)
            self.owner = None
        return depth

    def again(self, depth: int) -> None:
        """Become the owner once more after `drop`, waiting if need be."""
        self._switch("acquire", self.free)
        self.take(depth)


class Lock(_Lockable):
    """`threading.Lock`."""

    def locked(self) -> bool:
        self._switch("locked")
        return self.owner is not None

    def owned(self) -> bool:
        return self.owner is not None  # by anyone: a Lock does not know

    def release(self) -> None:
        if self._task_runner.over and not self._task_runner.closed:
            self.drop()  # a task that unwinds leaves `with lock:`, whoever owns the lock by now
            return
        if self.owner is not None:
            self._switch("release")
        if self.owner is None:
            raise RuntimeError("release unlocked lock")
        self.drop()


class RLock(_Lockable):
    """`threading.RLock`. Taking it again or letting go an inner hold is no switch point: nobody can
    tell.
    """

    def owned(self) -> bool:
        return self.owner is self._task_runner.running

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.owned():
            self.depth += 1
            return True
        return super().acquire(blocking, timeout)

    def release(self) -> None:
        if not self.owned():
            if self._task_runner.over and not self._task_runner.closed:
                return
            raise RuntimeError("cannot release un-acquired lock")
        if self.depth == 1 and not self._task_runner.over:
            self._switch("release")
        self.depth -= 1
        if self.depth == 0:
            self.drop()


class _Waiter:
    notified = False


class Condition(_Guard):
    """`threading.Condition`."""

    def __init__(self, lock: Lock | RLock | None = None) -> None:
        super().__init__()
        self._lock = RLock() if lock is None else lock
        self._waiters: deque[_Waiter] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    @property
    def status(self) -> str:
        return f"{self._lock} {self._lock.status}"

    def wait(self, timeout: float | None = None) -> bool:
        if not self._lock.owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        self._switch("let go")
        waiter = _Waiter()
        self._waiters.append(waiter)
        depth = self._lock.drop()

        def woken() -> bool:
            return waiter.notified and self._lock.free()

        try:
            in_time = self._switch("wait", woken, timed=timeout is not None)
        except BaseException:
            self._withdraw(waiter, depth)
            raise
        heard = waiter.notified
        if in_time:
            self._lock.take(depth)
        else:
            self._withdraw(waiter, depth)
        return heard

    def _withdraw(self, waiter: _Waiter, depth: int) -> None:
        """Take the lock again, and end the wait behind that as `threading` does: a notify in
        between is lost on it.
        """
        self._lock.again(depth)
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        result = predicate()
        while not result:
            in_time = self.wait(timeout)
            result = predicate()
            if not in_time:
                break
        return result

    def notify(self, n: int = 1) -> None:
        if not self._lock.owned():
            raise RuntimeError("cannot notify on un-acquired lock")
        self._switch("notify")
        for _ in range(min(n, len(self._waiters))):
            self._waiters.popleft().notified = True

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event(Primitive):
    """`threading.Event`."""

    def __init__(self) -> None:
        super().__init__()
        self._flag = False

    @property
    def status(self) -> str:
        return "set" if self._flag else "not set"

    def is_set(self) -> bool:
        self._switch("is_set")
        return self._flag

    def set(self) -> None:
        self._switch("set")
        self._flag = True

    def clear(self) -> None:
        self._switch("clear")
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        ready = patient(lambda: self._flag, timeout)
        self._switch("wait", ready, timed=timeout is not None)
        return self._flag
