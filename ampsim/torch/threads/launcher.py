"""Work for the thread that owns the optimizer, sent through an ordered launcher, and its results."""

import _thread
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from ampsim.torch.threads.register import ClosedError, Sync
from ampsim.torch.threads.streams import Event, come_behind, kept, record_event

P = ParamSpec("P")
T = TypeVar("T")


class Launch(Protocol):
    """A function that runs another later, in order, always on the same thread."""

    def __call__(self, work: Callable[[], object], /) -> object:
        """Run `work` after all earlier work; a returned Future shows whether it was dropped."""


class _Lock(_thread.RLock):  # type: ignore[misc]  # final in the stubs only
    """A lock that replaces a Future's condition, whose Python code an interrupt could leave locked."""

    def notify_all(self) -> None:
        """Do nothing: a thread that waits for a Job waits in a callback of it."""


class Job(Future[T]):
    """A Future that records whether its result was requested, and that a forked child can end.

    An interrupt leaves it consistent. `sync` is the module of its locks; a test passes its scheduler's.
    """

    def __init__(self, *, sync: Sync = threading) -> None:
        super().__init__()
        self._sync = sync
        self._make_locks()
        self.asked = False
        self.finished: Event | None = None  # recorded behind the work, on its stream

    def _make_locks(self) -> None:
        lock: Any = _Lock() if self._sync is threading else self._sync.Condition()
        self._condition = lock

    def result(self, timeout: float | None = None) -> T:
        """Return what the work returned, or raise what it raised; waits for it, and so does the caller's stream."""
        self._wait(timeout)
        come_behind(self.finished)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the work raised, or None; waits for it, and so does the caller's stream."""
        self._wait(timeout)
        come_behind(self.finished)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        self.asked = True
        gate = self._sync.Lock()
        gate.acquire()
        self.add_done_callback(lambda _: gate.release())
        if not gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise TimeoutError

    def doing(self, work: Callable[[], T]) -> T:
        """Run `work`, and record an event on its stream, also if it raises."""
        try:
            return work()
        finally:
            self.finished = record_event()

    def fail(self, error: BaseException) -> None:
        """End with an error; if the job has already ended, run its callbacks again.

        An interrupt may have occurred between the result and its callbacks.
        """
        if self.done():
            self._invoke_callbacks()  # type: ignore[attr-defined]
        else:
            self.set_exception(error)

    def after_fork(self, error: BaseException) -> None:
        """End with an error in a forked child, which has no thread to finish the job."""
        self._make_locks()
        self.fail(error)


class Launcher:
    """Sends work to the thread of a ``launch`` function, or runs it on the caller's thread.

    Guarantees:
        * Work runs in the order it was sent.
        * An exception ends the Job and does not reach the launcher's thread. If the launcher returns a Future, dropped
          work ends the Job too.
        * In a forked child, which has no such thread, `send` raises.

    Assumes:
        * `launch` runs all functions in order, on one thread.
    """

    def __init__(self, launch: Launch | None, *, sync: Sync = threading) -> None:
        self._launch, self._sync = launch, sync
        self._ident: int | None = None
        self._gone: BaseException | None = None
        if launch is not None:
            launch(self._note)  # the first job: later jobs find the id set

    def _note(self) -> None:
        self._ident = self._sync.get_ident()

    @property
    def remote(self) -> bool:
        """Whether the optimizer has its own thread."""
        return self._launch is not None

    def here(self) -> bool:
        """Return whether the caller is on the thread that owns the optimizer."""
        return self._launch is None or self._ident == self._sync.get_ident()

    def send(
        self, work: Callable[[], T], on_error: Callable[[BaseException], object] | None = None
    ) -> Job[T]:
        """Run `work` on that thread after all earlier work; `on_error` receives its exception there."""
        if self._launch is None:
            raise RuntimeError("no launch function: work runs on the caller's thread")
        if self._gone is not None:
            raise ClosedError(
                "the optimizer's thread does not exist in this forked process: create a new scaler"
            ) from self._gone
        job: Job[T] = Job(sync=self._sync)
        if on_error is not None:
            job.add_done_callback(partial(_report, on_error))
        handle = self._launch(_runner(work, job))
        if isinstance(handle, Future):
            handle.add_done_callback(partial(_dropped, job))
        return job

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` there, wait for it, and return its result, which the caller's stream may use."""
        if self.here():
            return work(*args, **kwargs)
        return kept(self.send(partial(work, *args, **kwargs)).result())

    def after_fork(self, gone: BaseException) -> None:
        """Make `send` raise in a forked child."""
        self._gone = gone


def _runner(work: Callable[[], T], job: Job[T]) -> Callable[[], None]:
    """Wrap work in a plain function, because launchers ask for its ``__name__``."""

    def run() -> None:
        try:
            result = job.doing(work)
        except BaseException as error:
            job.fail(error)
        else:
            job.set_result(result)

    return run


def _report(on_error: Callable[[BaseException], object], job: Future[T]) -> None:
    error = Future.exception(job)  # not job.exception, which sets `asked`
    if error is not None:
        on_error(error)


def _dropped(job: Job[T], handle: Future[object]) -> None:
    error = (
        CancelledError("dropped by its launcher")
        if handle.cancelled()
        else Future.exception(handle)
    )
    if error is not None:
        job.fail(error)
