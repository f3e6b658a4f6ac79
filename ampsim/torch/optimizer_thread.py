"""One background thread that runs optimizer work in order."""

import atexit
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from ampsim.torch.tickets import ClosedError


class OptimizerThread:
    """A FIFO of functions, run on one thread; on CUDA on one stream of its own.

    Guarantees:
        * Functions run in the order they were launched, each once, and never two at a time.
        * An exception goes to its Future; where nobody asked for the Future, to the next `launch`,
          `synchronize` or `close`, with its cause. What was launched behind it is cancelled.
        * CUDA: what runs here sees the work that the launching thread's stream had been given before.
        * `close` is idempotent and bounded in time; the interpreter's exit closes. After a fork the child's
          copy refuses work at once.

    Assumes:
        * A launched function does not wait for a later one.

    ============ ======================== =====================
    attribute    written                  read
    ============ ======================== =====================
    ``_jobs``    under the lock           under the lock
    ``_error``   under the lock           under the lock
    ``_open``    under the lock           under the lock
    ============ ======================== =====================
    """

    def __init__(self, name: str = "optimizer", *, sync: Any = threading) -> None:
        self._changed = sync.Condition(sync.Lock())
        self._jobs: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = deque()
        self._error: BaseException | None = None
        self._open = True
        self._busy = False
        self._stream = _new_stream()
        # A daemon, so that a job that never ends cannot keep the interpreter; atexit joins it first.
        self._thread = sync.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        _alive.add(self)

    def launch(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run ``work(*args, **kwargs)`` behind everything launched before. Does not wait."""
        future: Future[Any] = Future()
        ready = _record_event()
        with self._changed:
            self._check()
            self._jobs.append((future, work, args, kwargs, ready))
            self._changed.notify_all()
        return future

    def step(self, step_fn: Callable[[], Any], is_async: bool = True) -> None:
        """Launch a step function, in the shape of RoundPipe's ``model.step``; wait for it unless `is_async`."""
        future = self.launch(step_fn)
        if not is_async:
            future.result()

    def synchronize(self) -> None:
        """Wait until all that was launched is done; raise the error of a job that failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs and not self._busy)
            self._raise_error()

    @property
    def is_open(self) -> bool:
        """Whether it takes work."""
        return self._open

    def here(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def close(self, timeout: float = 10.0) -> None:
        """Finish what was launched, end the thread, raise the error of a job that failed.

        After `timeout` seconds it reports on stderr the job that does not end, and lets go.
        """
        with self._changed:
            self._open = False
            self._changed.notify_all()
        if not self.here():
            self._thread.join(timeout)
            if self._thread.is_alive():
                print(
                    f"ampsim: {self._thread.name} thread still busy after {timeout} s; letting go",
                    file=sys.stderr,
                )
        with self._changed:
            self._raise_error()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            future, work, args, kwargs, ready = job
            try:
                with torch.cuda.stream(self._stream):  # does nothing for None
                    if self._stream is not None:
                        self._stream.wait_event(ready)
                    future.set_result(work(*args, **kwargs))
            except BaseException as error:
                self._fail(future, error)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or not self._open)
            if not self._jobs:
                return None
            self._busy = True
            return self._jobs.popleft()

    def _fail(self, future: "Future[Any]", error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            behind, self._jobs = self._jobs, deque()
        future.set_exception(error)
        for waiting, *_ in behind:
            waiting.cancel()

    def _check(self) -> None:
        if not self._open:
            raise ClosedError(f"the {self._thread.name} thread is closed: make a new OptimizerThread")
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise RuntimeError(f"work on the {self._thread.name} thread failed: {error}") from error

    def _after_fork(self) -> None:
        """In a child there is no such thread, and locks may be held by threads that are not there either."""
        self._changed, self._open = threading.Condition(), False
        self._jobs.clear()


_shared: OptimizerThread | None = None


def shared_thread() -> OptimizerThread:
    """The process's one optimizer thread, for loops that name none; made when it is first asked for."""
    global _shared
    if _shared is None or not _shared.is_open:
        _shared = OptimizerThread("optimizer stream")
    return _shared


_alive: "weakref.WeakSet[OptimizerThread]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for thread in list(_alive):
        try:
            thread.close()
        except RuntimeError as error:
            print(f"ampsim: {error}", file=sys.stderr)


def _fork_all() -> None:
    for thread in list(_alive):
        thread._after_fork()  # noqa: SLF001


os.register_at_fork(after_in_child=_fork_all)


def _record_event() -> Any:
    if not torch.cuda.is_available():
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def _new_stream() -> Any:
    return torch.cuda.Stream() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
