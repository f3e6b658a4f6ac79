"""Sending work to the thread that owns the optimizer, through any launcher that keeps order."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from ampsim.torch.threads.jobs import Job
from ampsim.torch.threads.register import ClosedError


class Worker:
    """The thread behind a ``launch`` function, or the caller's own if there is none.

    Guarantees:
        * Work runs in the order it was sent.
        * An exception in it goes to the Job, never into the launcher's thread. So does the news that the
          launcher dropped it, if the launcher returns a Future that tells.
        * In a forked child, where there is no such thread, `send` raises.

    Assumes:
        * `launch` runs every function it is given, in order, always on the same thread.
    """

    def __init__(self, launch: Callable[..., Any] | None, *, sync: Any = threading) -> None:
        self._launch, self._sync = launch, sync
        self._ident: int | None = None
        self._gone: BaseException | None = None
        if launch is not None:
            launch(self._note)  # the first job of all: any later one finds the note written

    def _note(self) -> None:
        self._ident = self._sync.get_ident()

    @property
    def remote(self) -> bool:
        """Whether there is another thread at all."""
        return self._launch is not None

    def here(self) -> bool:
        """Whether the caller is on the thread that owns the optimizer."""
        return self._launch is None or self._ident == self._sync.get_ident()

    def send(
        self,
        work: Callable[..., Any],
        *args: Any,
        on_error: Callable[[BaseException], Any] | None = None,
        **kwargs: Any,
    ) -> Job:
        """Run `work` there, behind everything sent before; `on_error` hears of an exception, there too."""
        if self._launch is None:
            raise RuntimeError("no launch function: work runs on the caller's thread")
        if self._gone is not None:
            raise ClosedError("the optimizer's thread is gone: make a new scaler") from self._gone
        job = Job(sync=self._sync)
        if on_error is not None:
            job.add_done_callback(partial(_tell, on_error))
        handle = self._launch(_runner(work, job, args, kwargs))
        if isinstance(handle, Future):
            handle.add_done_callback(partial(_dropped, job))
        return job

    def call(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `work` there and wait for its result."""
        return self.send(work, *args, **kwargs).result()

    def after_fork(self, gone: BaseException) -> None:
        """In a child: only the thread that forked is there."""
        self._gone = gone


def _runner(work: Callable[..., Any], job: Job, args: Any, kwargs: Any) -> Callable[[], None]:
    """A plain function, because launchers ask for its ``__name__``."""

    def run() -> None:
        try:
            result = work(*args, **kwargs)
        except BaseException as error:
            job.fail(error)
        else:
            job.set_result(result)

    return run


def _tell(on_error: Callable[[BaseException], Any], job: "Future[Any]") -> None:
    error = Future.exception(job)  # not job.exception: that would count as asked
    if error is not None:
        on_error(error)


def _dropped(job: Job, handle: "Future[Any]") -> None:
    error = CancelledError("dropped by its launcher") if handle.cancelled() else Future.exception(handle)
    if error is not None:
        job.fail(error)
