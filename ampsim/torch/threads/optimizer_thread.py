"""One background thread that runs optimizer work in order."""

import atexit
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from ampsim.torch.threads.launcher import Job
from ampsim.torch.threads.register import Changes, ClosedError, Sync
from ampsim.torch.threads.streams import come_behind, record_event

P = ParamSpec("P")
T = TypeVar("T")
AnyJob = Job[Any]


class _Work(NamedTuple):
    job: AnyJob
    run: Callable[[], object]
    ready: torch.cuda.Event | None  # recorded when it was launched


class OptimizerThread:
    """Runs functions in order on one thread; on CUDA on its own stream.

    Guarantees:
        * Functions run in the order of their launch, each once, and one at a time.
        * An exception ends its Future. If the Future's result was not requested, the next `launch`, `synchronize`, or
          `close` raises too, with the exception as cause. Work launched after it fails.
        * CUDA: a function runs after the earlier work of the launching thread's stream. The stream of a caller that
          waits (for a Future, in `synchronize`, or in `close`) runs after the functions. Streams wait, the host does
          not.
        * `close` is idempotent and limited in time; the interpreter closes the thread at exit. After a fork, `launch`
          in the child raises, and no call there waits for work of the parent.
        * References of a function are released before the thread waits for the next one.

    Assumes:
        * A launched function does not wait for a later one.
        * CUDA: data on other devices than the launching thread's current one is ready at the launch.

    ============ ======================== =====================
    attribute    written                  read
    ============ ======================== =====================
    ``_queue``   under the lock           under the lock
    ``_running`` under the lock           under the lock
    ``_failed``  under the lock           under the lock
    ``_open``    under the lock           anywhere, lock-free
    ============ ======================== =====================
    """

    def __init__(self, name: str = "optimizer", *, sync: Sync = threading) -> None:
        self._sync = sync
        self._make_locks()
        self._queue: deque[_Work] = deque()
        self._running: AnyJob | None = None
        self._failed: tuple[AnyJob, BaseException] | None = (
            None  # the first, until its error was seen
        )
        self._finished: torch.cuda.Event | None = None  # recorded behind the last job
        self._open, self._let_go, self._ended = True, False, False
        self._stream = torch.cuda.Stream() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
        # A daemon, so that a job that never ends cannot keep the interpreter; atexit joins it first.
        self._thread = sync.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        if sync is threading:
            _alive.add(self)

    def _make_locks(self) -> None:
        self._changed = Changes(self._sync)
        self._lock = self._changed.lock

    def launch(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``work(*args, **kwargs)`` after all earlier work, without waiting.

        Args:
            work: Function to run.
            args: Positional arguments of `work`.
            kwargs: Keyword arguments of `work`.

        Returns:
            Future: The result of `work`.

        Raises:
            ClosedError: If the thread is closed.
            RuntimeError: If earlier work failed and its result was not requested.
        """
        job: Job[T] = Job(sync=self._sync)
        item = _Work(job, partial(work, *args, **kwargs), record_event())
        with self._lock:
            if not self._open:
                raise ClosedError(
                    f"the {self._thread.name} thread is closed: create a new OptimizerThread"
                )
            self._raise_error()
            self._changed.notify_all()
            self._queue.append(item)
        return job

    def synchronize(self) -> None:
        """Wait for all launched work.

        Raises:
            RuntimeError: If work failed and its result was not requested, or if called on this thread.
        """
        if self.here():
            raise RuntimeError(
                f"synchronize() on the {self._thread.name} thread would wait for itself: remove this call"
            )
        self._changed.wait_for(lambda: not self._queue and self._running is None)
        come_behind(self._finished)
        with self._lock:
            self._raise_error()

    @property
    def is_open(self) -> bool:
        """Whether `launch` accepts work."""
        return self._open

    def here(self) -> bool:
        """Return whether the caller runs on this thread."""
        return self._sync.current_thread() is self._thread

    def close(self, timeout: float = 10.0) -> None:
        """Finish all launched work and end the thread. Idempotent.

        Args:
            timeout: Maximum time to wait in seconds. After it, the call prints a message to stderr and abandons the
                thread.

        Raises:
            RuntimeError: If work failed and its result was not requested.
        """
        with self._lock:
            self._changed.notify_all()
            self._open = False
        if not (self.here() or self._let_go):
            # Not by joining it: an interrupted join of Python 3.11 and 3.12 takes the thread for ended.
            if self._changed.wait_for(lambda: self._ended, timeout):
                self._thread.join()
            else:
                self._let_go = True
                print(
                    f"ampsim: {self._thread.name} thread still busy after {timeout} s; abandoning it",
                    file=sys.stderr,
                )
        finished, self._finished = self._finished, None  # once: the interpreter's exit closes again
        come_behind(finished)  # who lets go of what jobs wrote lets go of it on this stream
        with self._lock:
            self._raise_error()

    def _work(self) -> None:
        try:
            while self._run_next():
                pass
        except BaseException as error:  # this thread is ending: no call may wait for it
            with self._lock:
                self._changed.notify_all()
                self._open, self._running = False, None
                left, self._queue = self._queue, deque()
            _fail_all([item.job for item in left], f"the {self._thread.name} thread ended", error)
        finally:
            with self._lock:
                self._changed.notify_all()
                self._ended = True

    def _run_next(self) -> bool:
        """Run one job; False if none will come. A function of its own: its locals end before the next wait."""
        (item,) = self._changed.wait_for(self._take)
        if item is None:
            return False
        job, run, ready = item
        try:
            if job.set_running_or_notify_cancel():
                with torch.cuda.stream(self._stream):  # does nothing for None
                    if self._stream is not None and ready is not None:
                        self._stream.wait_event(ready)
                    job.set_result(job.doing(run))
        except BaseException as error:
            self._fail(job, error)
        finally:
            with self._lock:
                self._changed.notify_all()
                self._running, self._finished = None, job.finished or self._finished
        return True

    def _take(self) -> tuple[_Work | None, ...]:
        """Take the next work, or None if none will come; () if there is none yet."""
        if not self._queue:
            return () if self._open else (None,)
        item = self._queue.popleft()
        self._running = item.job
        return (item,)

    def _fail(self, job: AnyJob, error: BaseException) -> None:
        with self._lock:
            self._failed = self._failed or (job, error)
            behind, self._queue = self._queue, deque()
        job.fail(error)
        _fail_all(
            [item.job for item in behind],
            f"earlier work on the {self._thread.name} thread failed",
            error,
        )

    def _raise_error(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None and not failed[0].asked:
            raise RuntimeError(
                f"work on the {self._thread.name} thread failed: {failed[1]!r}"
            ) from failed[1]

    def _after_fork(self) -> None:
        """Close in a forked child: recreate the locks, and end all launched work with an error."""
        gone = ClosedError("this is a forked process, which has no optimizer's thread")
        jobs = [item.job for item in self._queue] + (
            [self._running] if self._running is not None else []
        )
        self._make_locks()
        self._queue.clear()
        self._open, self._running, self._failed, self._ended = False, None, None, True
        for job in jobs:
            job.after_fork(gone)


def _fail_all(jobs: list[AnyJob], why: str, cause: BaseException) -> None:
    for job in jobs:
        error = RuntimeError(f"not run: {why}: {cause!r}")
        error.__cause__ = cause
        job.fail(error)


_shared: OptimizerThread | None = None
_making = threading.Lock()


def shared_thread() -> OptimizerThread:
    """Return the shared optimizer thread of the process; the first call creates it."""
    global _shared
    with _making:
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
    global _making
    _making = threading.Lock()
    for thread in list(_alive):
        thread._after_fork()  # noqa: SLF001


os.register_at_fork(after_in_child=_fork_all)
