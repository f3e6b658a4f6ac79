"""One immutable value that threads share: replaced whole under one lock, awaited, and closed by a
fork.

Every lock of the asynchronous scaler belongs to a `SharedState`, and one registry knows them all. A
forked child makes the locks again in one pass: threads that do not exist in it may have held them.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Generic, Protocol, Self, TypeVar

from ampsim.core.pipeline import WouldBlockError
from ampsim.torch.async_state import ForkedError


class Closable(Protocol):
    """Interface of an immutable value that a `SharedState` holds."""

    def close(self, cause: BaseException) -> Self:
        """Return the value that takes no more work."""

    def check_runs(self) -> None:
        """Raise ClosedError if a job may never run, so that no thread should wait for it."""


S = TypeVar("S", bound=Closable)


class SharedState(Generic[S]):
    """An immutable value that is replaced whole, and the threads that wait for it to change.

    Any thread reads `value` without the lock. It is written with the lock held, by one assignment.

    `threading.Condition` is not used: it is Python code, in which CPython handles signals, so
    Ctrl-C may leave its lock taken, or free inside a ``with`` block. Here only ``with`` takes the
    lock, which is C code, and nobody waits with the lock held: each waiting thread waits for a lock
    of its own, its gate.

    Args:
        value: First value.
        sync: Namespace of `Lock`: `threading`, or that of a test's scheduler.
    """

    def __init__(self, value: S, sync: ModuleType = threading) -> None:
        self.value = value
        self._sync = sync
        self._make_lock()
        _registry.add(self)

    def _make_lock(self) -> None:
        self._lock = self._sync.Lock()
        self._gates: list[Any] = []  # read and written with the lock held

    def change(self, transition: Callable[..., S], *args: Any, **kwargs: Any) -> S:
        """Replace the value by ``transition(value, ...)``, and return it.

        If the transition raises, nothing changes.
        """
        with self._lock:
            return self._store(transition(self.value, *args, **kwargs))

    def wait(self, transition: Callable[[S], S], timeout: float | None = None) -> S:
        """Do `change` as soon as the transition does not raise WouldBlockError; wait for other
        changes until then.

        Args:
            transition: Function of the value.
            timeout: Maximum time to wait in seconds; None waits indefinitely.

        Returns:
            The new value.

        Raises:
            WouldBlockError: If the transition still raises it after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        is_late = False
        while True:
            with self._lock:
                try:
                    return self._store(transition(self.value))
                except WouldBlockError:
                    if is_late:
                        raise
                gate = self._sync.Lock()
                gate.acquire()
                self._gates.append(gate)
            left = -1 if deadline is None else max(0.0, deadline - time.monotonic())
            is_late = not gate.acquire(timeout=left)

    def wake(self) -> None:
        """Let every waiting thread look again: something beside the value has changed."""
        with self._lock:
            self._open_gates()

    def _store(self, value: S) -> S:
        # The gates open first. A thread that wakes needs the lock to look, so it sees the new
        # value, and an interrupt between the two lines wakes threads for nothing instead of leaving
        # them asleep.
        if value is not self.value:
            self._open_gates()
            self.value = value
        return value

    def _open_gates(self) -> None:
        while self._gates:
            # Already open: an interrupt struck before the pop.
            with suppress(RuntimeError):
                self._gates[-1].release()
            self._gates.pop()

    def after_fork(self) -> None:
        """Close in a forked child, and call nothing of the parent's."""
        self._make_lock()
        self.value = self.value.close(
            ForkedError("this process is a fork, and the threads stayed in its parent")
        )


_registry: "weakref.WeakSet[SharedState[Any]]" = weakref.WeakSet()


def _close_all_after_fork() -> None:
    for shared in list(_registry):
        shared.after_fork()


os.register_at_fork(after_in_child=_close_all_after_fork)
