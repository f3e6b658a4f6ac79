"""One background thread that runs optimizer work in order."""

import atexit
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from ampsim.core.pipeline import WouldBlockError
from ampsim.torch.async_state import ClosedError, ForkedError
from ampsim.torch.shared_state import Closable, SharedState
from ampsim.torch.streams import record_event, wait_for

OnError = Callable[[BaseException], object]


class Job:
    """A call that was sent to another thread. Its outcome is stored by one assignment.

    On an accelerator the work runs behind what the sender's stream was given before, and the stream
    of a caller of `result` runs behind the work.

    Args:
        work: Function without arguments.
        shared: State whose waiting threads learn that the job has ended.
        device: Device whose streams order the work.
        on_error: Function that gets the error of the work, or of the job's being dropped. A job
            without one ends its `OptimizerThread` if it raises.
    """

    __name__ = "job"  # some launchers print it

    def __init__(
        self,
        work: Callable[[], Any],
        shared: SharedState[Any],  # of a scaler or of a thread
        device: torch.device,
        on_error: OnError | None = None,
    ) -> None:
        self._work: Callable[[], Any] | None = work
        self._shared = shared
        self._device = device
        self._sent = record_event(device)
        self.finished: torch.Event | None = None
        self.on_error = on_error
        self.outcome: tuple[Any, BaseException | None] | None = None

    def __call__(self) -> None:
        """Run the work; its error becomes the outcome."""
        work = self._work
        if work is None:
            return
        try:
            wait_for(self._sent, self._device)
            outcome: tuple[Any, BaseException | None] = (work(), None)
        except BaseException as error:
            # An interrupt or SystemExit too: somebody waits for the outcome.
            outcome = (None, error)
        self.finished = record_event(self._device)
        self.end(*outcome)

    def end(self, value: Any, error: BaseException | None) -> None:
        """Store the outcome, unless there is one, and wake the threads that wait for it."""
        if self.outcome is None:
            self.outcome = value, error
            self._work = None  # no longer holds what the work held
            if error is not None and self.on_error is not None:
                self.on_error(error)
        self._shared.wake()

    def result(self) -> Any:
        """Wait for the work.

        Returns:
            What the work returned.

        Raises:
            BaseException: What the work raised.
            ClosedError: If it was closed before the work ended: the scaler that sent the work, or
                by a fork the thread.
        """
        self._shared.wait(self._check_ended)
        wait_for(self.finished, self._device)
        value, error = self.outcome  # type: ignore[misc]  # `_check_ended` has seen it
        if error is not None:
            raise error
        return value

    def _check_ended(self, state: Closable) -> Closable:
        if self.outcome is None:
            state.check_runs()
            raise WouldBlockError("the job has not ended")
        return state


@dataclass(frozen=True, eq=False)
class WorkQueue:
    """State of an optimizer thread.

    Attributes:
        jobs: Jobs that have not ended, oldest first; the first one runs.
        finished: Event behind the last job that has run; None on the CPU.
        closed: Why the thread takes no more work; None while it does.
    """

    jobs: tuple[Job, ...] = ()
    finished: torch.Event | None = None
    closed: BaseException | None = None

    def append(self, job: Job) -> "WorkQueue":
        """Add a job; ClosedError if the thread takes no more."""
        if self.closed is not None:
            raise ClosedError(
                f"the optimizer thread takes no more work: {self.closed!r}; create a new "
                "OptimizerThread"
            ) from self.closed
        return replace(self, jobs=(*self.jobs, job))

    def check_next(self) -> "WorkQueue":
        """Return the queue if it has a job or none will come, else WouldBlockError."""
        if not self.jobs and self.closed is None:
            raise WouldBlockError("no job waits")
        return self

    def finish(self, finished: torch.Event | None) -> "WorkQueue":
        """Note that the first job has ended."""
        return replace(self, jobs=self.jobs[1:], finished=finished)

    def drop(self) -> "WorkQueue":
        """Drop all jobs."""
        return replace(self, jobs=())

    def check_runs(self) -> None:
        """Raise ForkedError in a forked child; a closed thread still runs its jobs."""
        if isinstance(self.closed, ForkedError):
            raise self.closed

    def check_idle(self) -> "WorkQueue":
        """Return the queue if no job waits or runs, else WouldBlockError."""
        if self.jobs:
            raise WouldBlockError("jobs wait or run")
        return self

    def fail(self, error: BaseException) -> "WorkQueue":
        """Take no more work, because a job failed."""
        return replace(self, closed=error)

    def close(self, cause: BaseException) -> "WorkQueue":
        """Take no more work; the first cause stays."""
        if isinstance(cause, ForkedError):  # the jobs are the parent's
            return replace(self, jobs=(), closed=cause)
        return self if self.closed is not None else replace(self, closed=cause)


class Owner(Protocol):
    """Interface of a scaler on an optimizer thread, which must know when the thread ends."""

    def close(self, cause: BaseException) -> None:
        """Take no more work."""


class OptimizerThread:
    """Runs functions in order on one thread; on an accelerator, on a stream of its own.

    The first launched function that raises ends the thread. Functions behind it are not run, and
    `launch`, `synchronize`, and `close` raise with its error as the cause. Scalers on the thread
    are closed with that cause too, and their states can still be saved.

    After a fork the thread does not exist in the child, where each method raises ForkedError at
    once.

    Args:
        device: Device whose streams order the functions. Default: the accelerator, or the CPU if
            there is none.
    """

    # ============== ======================== ======================
    # attribute      written                  read
    # ============== ======================== ======================
    # `_shared`      by its transitions       anywhere
    # `scalers`      `AsyncGradScaler()`      this thread, at its end
    # `_thread`      `__init__`               anywhere
    # ============== ======================== ======================

    def __init__(self, device: str | torch.device | None = None) -> None:
        if device is None:
            available = torch.accelerator.is_available()
            device = torch.accelerator.current_accelerator() if available else None
        self.device = torch.device(device or "cpu")
        self._shared: SharedState[WorkQueue] = SharedState(WorkQueue(), threading)
        self.scalers: weakref.WeakSet[Owner] = weakref.WeakSet()
        # A daemon, so that a function that never returns cannot keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="optimizer", daemon=True)
        self._thread.start()
        _threads.add(self)

    def launch(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job:
        """Run ``work(*args, **kwargs)`` after all that was launched before.

        Args:
            work: Function to run.
            args: Positional arguments of `work`.
            kwargs: Keyword arguments of `work`.

        Returns:
            Job: Its `result` waits for the function.

        Raises:
            ClosedError: If the thread was closed or a function has failed.
        """
        job = work
        if not isinstance(job, Job):
            job = Job(partial(work, *args, **kwargs), self._shared, self.device)
        self._shared.change(WorkQueue.append, job)
        return job

    def synchronize(self) -> None:
        """Wait for all launched functions.

        Raises:
            ForkedError: In a forked child.
            RuntimeError: If a function failed; the cause is its error. Also on the thread itself.
        """
        if self.is_current():
            raise RuntimeError(
                "synchronize() on the optimizer thread would wait for itself: remove it"
            )
        self._check_failed(self._shared.wait(WorkQueue.check_idle))

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def close(self, timeout: float | None = 10.0) -> None:
        """Run all launched functions, then end the thread. Idempotent.

        Args:
            timeout: Maximum time to wait in seconds, after which the thread is left to itself; None
                waits indefinitely.

        Raises:
            RuntimeError: If a function failed; the cause is its error.
            TimeoutError: If a function still runs after `timeout` seconds.
        """
        self._shared.change(WorkQueue.close, ClosedError("it was closed"))
        if self.is_current():
            return
        try:
            queue = self._shared.wait(WorkQueue.check_idle, timeout)
        except WouldBlockError:
            raise TimeoutError(
                f"a function on the optimizer thread still runs after {timeout} s: expected it to "
                "return; pass a longer timeout"
            ) from None
        if not isinstance(queue.closed, ForkedError):
            self._thread.join()  # returns at once: the thread has nothing left to run
        _threads.discard(self)
        self._check_failed(queue)

    def _check_failed(self, queue: WorkQueue) -> None:
        """Order the caller's stream behind the jobs; raise the error that ended the thread."""
        wait_for(queue.finished, self.device)
        queue.check_runs()
        error = queue.closed
        if error is not None and not isinstance(error, ClosedError):
            raise RuntimeError(
                f"work on the optimizer thread failed: {error!r}"
            ) from error

    def _run(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.set_stream(torch.Stream(self.device))
        try:
            while self._run_next():
                pass
        except BaseException as error:  # an interrupt between two jobs
            self._fail(error)
        self._close_scalers(ClosedError("its optimizer thread was closed"))

    def _run_next(self) -> bool:
        """Run one job; return False if no more will come.

        Its locals end here, so a thread that waits holds no gradients.
        """
        jobs = self._shared.wait(WorkQueue.check_next).jobs
        if not jobs:
            return False
        job = jobs[0]
        job()
        error = None if job.outcome is None else job.outcome[1]
        if error is not None and job.on_error is None:
            self._fail(error)
        self._shared.change(WorkQueue.finish, job.finished)
        return True

    def _fail(self, error: BaseException) -> None:
        """Close the thread, and end the jobs that will not run."""
        self._close_scalers(error)  # first: who hears of the error finds them closed
        text = f"not run: earlier work on the optimizer thread failed: {error!r}"
        for job in self._shared.change(WorkQueue.fail, error).jobs:
            dropped = RuntimeError(text)
            dropped.__cause__ = error
            job.end(None, dropped)  # of the job that has failed, the outcome stays
        self._shared.change(WorkQueue.drop)

    def _close_scalers(self, cause: BaseException) -> None:
        for scaler in list(self.scalers):
            scaler.close(cause)


_threads: "weakref.WeakSet[OptimizerThread]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for thread in list(_threads):
        try:
            thread.close()
        except (RuntimeError, TimeoutError) as error:
            print(f"ampsim: {error}", file=sys.stderr)
