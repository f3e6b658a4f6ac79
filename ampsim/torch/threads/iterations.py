"""Iterations of a scaler: maps calls to tickets and runs updates in order, without tensors."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from ampsim.core.pipeline import check_turn
from ampsim.core.torch_model import refusals
from ampsim.torch.threads.launcher import Job, Launch, Launcher
from ampsim.torch.threads.register import ClosedError, Register, Sync, Ticket

V = TypeVar("V")


class Iterations(Generic[V]):
    """The register of versions, the launcher, and the ticket of a call that passes none.

    This ticket is not stored but derived from the register. On the optimizer's thread, it is the oldest outstanding
    ticket. On other threads, it is the oldest outstanding ticket without a requested update. So an interrupted call
    leaves no inconsistent state.

    ================ ======================================= =======================
    attribute        written by                              read by
    ================ ======================================= =======================
    ``register``     `start`, locked, once                   any thread, lock-free
    ``_requested``   the thread that updates, locked         any thread, lock-free
    ``by_ticket``    `begin`                                 any thread, lock-free
    ================ ======================================= =======================

    `sync` is the namespace that locks come from; a test passes its scheduler's.
    """

    def __init__(self, depth: int, launch: Launch | None, *, sync: Sync = threading) -> None:
        self._depth, self._sync = depth, sync
        self._make_locks()
        self.register: Register[V] | None = None
        self._requested = 0  # updates that the optimizer's thread was asked for
        self._closed = False
        self.by_ticket = False  # this loop passes tickets
        self.launcher = Launcher(launch, sync=sync)

    def _make_locks(self) -> None:
        self._lock = self._sync.Lock()
        self._asking = (
            self._sync.RLock()
        )  # again by one thread: a launcher that drops work tells so at once

    def start(self, first: Callable[[], tuple[V, ...]]) -> Register[V]:
        """Return the register; the first call creates it from the versions that `first` returns."""
        with self._lock:
            if self.register is None:
                if self._closed:
                    raise ClosedError("this scaler is closed; create a new one")
                versions = first()
                register = Register(versions[0], self._depth, sync=self._sync)
                register.restore(versions)
                self.register = register
            return self.register

    def started(self, name: str) -> Register[V]:
        """Return the register, which is open; raise torch's error if there is none yet."""
        if self.register is None:
            raise refusals.before_scale(name).error()
        self.register.check_open()
        return self.register

    # ------------------------------------------------------------------------------------- which iteration

    @property
    def _waiting(self) -> int:
        """Number of the first ticket that a call without a ticket may use."""
        return 0 if self.launcher.here() else self._requested

    def stepping(self, name: str, ticket: Ticket[V] | None) -> Ticket[V]:
        """Return the ticket that is given, if it is outstanding; else the one that is meant, begun if there is none."""
        register = self.started(name)
        if ticket is not None:
            return self.checked(name, ticket)
        waiting = self._waiting
        return register.known(waiting) or register.current(waiting)

    def checked(self, name: str, ticket: Ticket[V]) -> Ticket[V]:
        """Return a ticket that was passed; RuntimeError unless it is outstanding, or if the scaler was closed."""
        register = self.register
        if register is None or ticket not in register.outstanding():
            raise RuntimeError(
                f"{name} with ticket {ticket.index}: expected one that this scaler's begin_iteration() returned and "
                "update() has not had; begin another"
            )
        register.check_open()
        return ticket

    def is_outstanding(self, ticket: Ticket[V]) -> bool:
        """Return whether this ticket belongs to this scaler and was not updated."""
        return self.register is not None and ticket in self.register.outstanding()

    def needs_no_ticket(self, name: str) -> None:
        """Raise for a call without a ticket in a loop with tickets: it could use another ticket or deadlock."""
        if self.by_ticket:
            raise RuntimeError(
                f"{name} without a ticket in a loop that passes tickets: "
                "expected ticket=, what begin_iteration() returned for this iteration"
            )

    def seen_here(self, register: Register[V]) -> V:
        """Return the version that this thread's next call uses; in loops that pass tickets the newest."""
        if self.by_ticket:
            return register.newest
        ticket = register.known(self._waiting)
        if ticket is not None:
            return ticket.value
        return register.coming() if self.launcher.here() else register.peek()

    # -------------------------------------------------------------------------------------------- updates

    def check_thread(self, ticket: Ticket[V] | None) -> None:
        """Raise for an update without a ticket on the optimizer's thread, which may use the next ticket."""
        if ticket is None and self.launcher.remote and self.launcher.here():
            raise RuntimeError(
                "update() without a ticket on the optimizer's thread: expected it on the thread that calls scale(); "
                "call it there, or pass ticket="
            )

    def ending(self, ticket: Ticket[V] | None) -> Ticket[V]:
        """Return the ticket that an update closes."""
        if ticket is None:
            self.needs_no_ticket("update")
        return self.stepping("update", ticket)

    def ask(self, ticket: Ticket[V], finish: Callable[[], None], is_async: bool) -> Job[None]:
        """Send an update to the optimizer's thread; if this raises, nothing was sent, except after an interrupt."""
        register, withdrawn = self.started("update"), False

        def unless_withdrawn() -> None:
            if not withdrawn:
                finish()

        def failed(error: BaseException) -> None:
            if is_async:
                register.close(error)  # wake the threads that wait for the version
                return
            with self._asking:  # the caller waits and hears; the ticket is as it was
                self._requested = min(self._requested, ticket.index)

        with self._asking:  # in ticket order, on any thread
            check_turn(ticket.index, max(self._requested, register.applied), register.begun)
            self._requested = ticket.index + 1
            try:
                return self.launcher.send(unless_withdrawn, on_error=failed)
            except BaseException:
                withdrawn = True  # it may have been launched before an interrupt struck
                self._requested = ticket.index
                raise

    def synchronize(self) -> None:
        """Wait for all work on the optimizer's thread; raise its error if it failed."""
        with suppress(ClosedError):  # a closed thread has done what it was given
            self.launcher.call(bool)  # its end says that the work before it is done
        if self.register is not None:
            self.register.check_failed()

    # ---------------------------------------------------------------------------------- saving, the end

    def restore(self, versions: tuple[V, ...], also: Callable[[], object]) -> None:
        """Start again from these, and do `also` with it, see `Register.restore`; outstanding tickets are void.

        Assumes that every update that was asked for was made.
        """
        with self._lock:
            self._requested, self.by_ticket = 0, False
            if self.register is not None:
                self.register.restore(versions, also)
            else:
                also()

    def close(self) -> None:
        """Close: later calls raise, and waiting threads wake up."""
        with self._lock:
            self._closed = True
        if self.register is not None:
            self.register.close()

    def after_fork(self) -> None:
        """Recreate the locks in a forked child, which has no other threads."""
        gone = RuntimeError("this is a forked process, which has no optimizer's thread")
        self._make_locks()
        self.launcher.after_fork(gone)
        if self.register is not None:
            self.register.after_fork(gone if self.launcher.remote else None)
