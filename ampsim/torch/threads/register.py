"""The multi-version register of the asynchronous scaler.

``after[j]`` is an immutable value: the scaler's state after j updates. Ticket i uses ``after[max(0, i - depth)]`` from
beginning to end (see `ampsim.core.pipeline`, the pure model of this class). This file does not import torch, so that it
can be stress-tested on an interpreter without the GIL.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ampsim.core.pipeline import check_turn

V = TypeVar("V")
T = TypeVar("T")
Sync = Any  # a namespace with Lock, RLock, Condition, Thread, get_ident: `threading`, or a test's scheduler


class ClosedError(RuntimeError):
    """Raised if the scaler was closed, or its background work failed; ``__cause__`` is that error."""


class Changes:
    """A lock with a wait for changes of the guarded state; an interrupt leaves it consistent.

    `threading.Condition` is Python code, in which CPython handles signals: Ctrl-C may leave its lock held
    indefinitely, or free inside a ``with`` block. Here only ``with`` acquires a lock, which is C code for a Lock, and a
    waiting thread holds no lock, so no lock is acquired again after a wait.
    """

    def __init__(self, sync: Sync) -> None:
        self._sync = sync
        self.lock = sync.Lock()
        self._gates: list[Any] = []  # held locks; one thread waits for each

    def wait_for(self, look: Callable[[], T], timeout: float | None = None) -> T:
        """Return the result of `look` once it is true, or after `timeout` seconds; `look` runs with the lock held."""
        end, late = time.monotonic() + (timeout or 0.0), False
        while True:
            with self.lock:
                result = look()
                if result or late:
                    return result
                gate = self._sync.Lock()
                gate.acquire()
                self._gates.append(gate)
            late = not gate.acquire(
                timeout=-1 if timeout is None else max(0.0, end - time.monotonic())
            )

    def notify_all(self) -> None:
        """Wake all waiting threads. The caller holds the lock."""
        while self._gates:
            with suppress(RuntimeError):  # already released: an interrupt occurred here before
                self._gates[-1].release()
            self._gates.pop()


@dataclass(frozen=True, eq=False)
class Ticket(Generic[V]):
    """The handle of one iteration, with its version of the scaler's state.

    Attributes:
        index: Number of the iteration, from 0.
        version: Number of updates before `value`.
        value: State of the scaler after `version` updates; immutable.
    """

    index: int
    version: int
    value: V


@dataclass(frozen=True)
class _Book(Generic[V]):
    """Immutable state of a register; replaced by one atomic assignment."""

    versions: tuple[V, ...]  # after[base], ..., after[applied]: those a later ticket may use
    applied: int  # updates applied
    begun: int  # tickets begun
    tickets: tuple[Ticket[V], ...] = ()  # outstanding, oldest first
    floor: int = 0  # later tickets use no older version

    def next_version(self, depth: int) -> int:
        return max(0, self.begun - depth, self.floor)

    def version(self, number: int) -> V:
        return self.versions[number - self.applied - 1]

    def with_ticket(self, depth: int) -> "_Book[V]":
        number = self.next_version(depth)
        ticket = Ticket(self.begun, number, self.version(number))
        # versions never decrease from one ticket to the next, and the floor remembers it
        return _Book(self.versions, self.applied, self.begun + 1, (*self.tickets, ticket), number)

    def with_version(self, made: V, depth: int, is_async: bool) -> "_Book[V]":
        applied = self.applied + 1
        floor = self.floor if is_async else applied
        kept = (
            applied - max(0, self.begun - depth, floor) + 1
        )  # from the version of the next ticket
        versions = (*self.versions, made)[-max(1, kept) :]
        return _Book(
            versions, applied, self.begun, self.tickets[1:], floor
        )  # `replace` takes three times as long


class Register(Generic[V]):
    """Versions and tickets.

    Guarantees:
        * ``after[j + 1]`` is made from ``after[j]`` exactly once, in ticket order.
        * A ticket's version never changes, and versions never decrease from one ticket to the next.
        * At most ``depth + 1`` tickets are outstanding; `begin` waits if there are more.
        * A call that raises, also by an interrupt, has made its change completely or not at all.
        * `newest`, `applied`, `begun`, `outstanding`, `known`, and `coming` do not wait.
        * `close` wakes all waiting threads, which raise ClosedError with its cause.

    Assumes:
        * Values are not written.
        * An `advance` function does not call back into the register.

    ============== ============================== ===================
    attribute      written                        read
    ============== ============================== ===================
    ``_book``      under the lock, whole          anywhere, lock-free
    ``_closed``    under the lock, once           anywhere, lock-free
    ============== ============================== ===================

    A change first notifies and then stores the new state in one assignment. Waiting threads need the lock to look, so
    they see no difference. An interrupt in between causes a spurious wakeup, not a lost one.

    `sync` is the module of Lock; a test passes its scheduler's.
    """

    def __init__(self, first: V, depth: int, *, sync: Sync = threading) -> None:
        self.depth = depth
        self._sync = sync
        self._make_locks()
        self._book = _Book((first,), applied=0, begun=0)
        self._closed: BaseException | bool = False

    def _make_locks(self) -> None:
        self._changed = Changes(self._sync)
        self._lock = self._changed.lock

    @property
    def newest(self) -> V:
        """The newest version."""
        return self._book.versions[-1]

    @property
    def applied(self) -> int:
        """Number of updates applied."""
        return self._book.applied

    @property
    def begun(self) -> int:
        """Number of tickets begun."""
        return self._book.begun

    def outstanding(self) -> tuple[Ticket[V], ...]:
        """Return the tickets begun and not yet updated, oldest first; the oldest one's update comes next."""
        return self._book.tickets

    def known(self, first: int = 0) -> Ticket[V] | None:
        """Return the oldest outstanding ticket from number `first` on; None if there is none."""
        for ticket in self._book.tickets:
            if ticket.index >= first:
                return ticket
        return None

    def coming(self) -> V:
        """Return the version of the next ticket, or the newest version if that does not exist yet."""
        book = self._book
        return book.version(min(book.next_version(self.depth), book.applied))

    def begin(self, timeout: float | None = None) -> Ticket[V]:
        """Begin the next ticket; wait until its version exists, or raise TimeoutError after `timeout` seconds.

        If an interrupt keeps the ticket from the caller, it is withdrawn, unless a later ticket exists.
        """
        before = after = None

        def look() -> Ticket[V] | None:
            nonlocal before, after
            before = self._book
            ticket = self._begin()
            after = self._book
            return ticket

        try:
            ticket = self._changed.wait_for(look, timeout)
        except BaseException:
            with self._lock:
                self._book = before if before and self._book is after else self._book
            raise
        if ticket is None:
            numbers = ", ".join(str(ticket.index) for ticket in self._book.tickets)
            raise TimeoutError(
                f"no ticket available after {timeout} s: tickets {numbers} wait for update()"
            )
        return ticket

    def current(self, first: int = 0) -> Ticket[V]:
        """Return `known`; if there is none, begin the next ticket, which may wait as `begin` does.

        Concurrent callers get one ticket. If an interrupt keeps it from its caller, the next caller gets it.
        """
        ticket = self._changed.wait_for(lambda: self._known_or_begun(first))
        assert ticket is not None  # noqa: S101 - without a timeout it waits until there is one
        return ticket

    def _known_or_begun(self, first: int) -> Ticket[V] | None:
        self.check_open()
        return self.known(first) or self._begin()

    def _begin(self) -> Ticket[V] | None:
        """Begin the next ticket if its version exists."""
        self.check_open()
        if not self._has_next():
            return None
        book = self._book.with_ticket(self.depth)
        self._book = book
        return book.tickets[-1]

    def peek(self) -> V:
        """Return the version of the next ticket; waits until it exists."""

        def look() -> list[V]:
            if self._has_next():
                return [self.coming()]
            self.check_open()
            return []

        return self._changed.wait_for(look)[0]

    def _has_next(self) -> bool:
        return self._book.next_version(self.depth) <= self._book.applied

    def apply(self, ticket: Ticket[V], advance: Callable[[V], V], *, is_async: bool = True) -> V:
        """Compute and publish ``after[ticket.index + 1] = advance(after[ticket.index])``.

        `advance` runs outside the lock, as it may wait for a device. If it raises, nothing changes and the ticket
        stays outstanding. A ticket that is not the next one raises RuntimeError. If two threads apply one ticket, the
        slower one raises.
        """
        self._check_turn(ticket)
        made = advance(self.newest)
        with self._lock:
            self._check_turn(ticket)
            book = self._book.with_version(made, self.depth, is_async)
            self._changed.notify_all()
            self._book = book
        return made

    def _check_turn(self, ticket: Ticket[V]) -> None:
        self.check_open()
        book = self._book
        check_turn(ticket.index, book.applied, book.begun)
        if book.tickets[0] is not ticket:
            raise RuntimeError(
                f"ticket {ticket.index} belongs to another scaler, or to the time before load_state_dict()"
            )

    def pending(self) -> tuple[V, ...]:
        """Return the versions for a checkpoint: that of the next ticket and all newer ones.

        Raises RuntimeError while tickets are outstanding.
        """
        book = self._book
        if book.tickets:
            numbers = ", ".join(str(ticket.index) for ticket in book.tickets)
            raise RuntimeError(
                f"tickets {numbers} are outstanding: save the state after their update()"
            )
        return book.versions[book.next_version(self.depth) - book.applied - 1 :]

    def restore(self, versions: tuple[V, ...], also: Callable[[], object] = bool) -> None:
        """Restart from the versions of `pending`, at most depth + 1; outstanding tickets become invalid.

        `also` is one call of C code for changes that belong to it, so an interrupt occurs before or after both.
        """
        with self._lock:
            self.check_open()
            behind = len(versions) - 1
            book = _Book(versions, applied=behind, begun=behind)
            self._changed.notify_all()
            try:
                also()
            finally:
                self._book = book

    def close(self, cause: BaseException | None = None) -> None:
        """Close: later calls raise, and waiting threads wake up. Idempotent; the first cause stays."""
        with self._lock:
            self._changed.notify_all()
            self._closed = self._closed or cause or True

    def after_fork(self, cause: BaseException | None) -> None:
        """Recreate the locks in a forked child, and close if there is a cause."""
        self._make_locks()
        self._closed = self._closed or cause or False

    def check_failed(self) -> None:
        """Raise ClosedError if this register was closed because background work failed."""
        if isinstance(self._closed, BaseException):
            self.check_open()

    def check_open(self) -> None:
        """Raise ClosedError if this register was closed."""
        if self._closed:
            cause = self._closed if isinstance(self._closed, BaseException) else None
            text = f"its background work failed: {cause}" if cause else "it was closed"
            raise ClosedError(f"this scaler is closed: {text}; create a new one") from cause
