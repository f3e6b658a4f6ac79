"""The outcome of work on another thread: `concurrent.futures.Future` over injected locks."""

import threading
from concurrent.futures import Future
from typing import Any


class Job(Future[Any]):
    """A Future that knows whether anybody asked how it ended, and that a forked child can settle.

    `sync` is the namespace that Condition comes from; a test passes its scheduler's.
    """

    def __init__(self, *, sync: Any = threading) -> None:
        super().__init__()
        self._sync = sync
        self._condition = sync.Condition()
        self.asked = False

    def result(self, timeout: float | None = None) -> Any:
        """What the work returned; waits for it, and raises what it raised."""
        self.asked = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the work raised, or None; waits for it."""
        self.asked = True
        return super().exception(timeout)

    def fail(self, error: BaseException) -> None:
        """End in an error, unless it has ended already; then tell those who wait once more.

        For an interrupt may have struck between the outcome and the news of it.
        """
        if not self.done():
            self.set_exception(error)
            return
        with self._condition:
            self._condition.notify_all()

    def after_fork(self, error: BaseException) -> None:
        """In a child: the thread that would have settled this, or holds its lock, is not there."""
        self._condition = self._sync.Condition()
        self.fail(error)
