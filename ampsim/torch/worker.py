"""Sending work to the thread that owns the optimizer, through any launcher that keeps order."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Worker:
    """The thread behind a ``launch`` function, or the caller's own if there is none.

    Guarantees:
        * Work runs in the order it was sent.
        * An exception in it goes to the Future, never into the launcher's thread.

    Assumes:
        * `launch` runs every function it is given, in order, always on the same thread.
    """

    def __init__(self, launch: Callable[..., Any] | None, *, sync: Any = threading) -> None:
        self._launch, self._sync = launch, sync
        self._ident: int | None = None
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

    def send(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run `work` there, behind everything sent before."""
        launch = self._launch
        if launch is None:
            raise RuntimeError("no launch function: work runs on the caller's thread")
        future: Future[Any] = Future()

        def run() -> None:
            try:
                result = work(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        handle = launch(run)
        if isinstance(handle, Future):  # tells us when the launcher drops a job instead of running it
            handle.add_done_callback(lambda done: done.cancelled() and future.cancel())
        return future

    def call(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `work` there and wait for its result."""
        return self.send(work, *args, **kwargs).result()
