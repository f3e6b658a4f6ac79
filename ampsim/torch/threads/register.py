"""The multi-version register of the asynchronous scaler.

``after[j]`` is an immutable value, the scaler's state once j updates have been applied. Ticket i carries
``after[max(0, i - depth)]`` for life (see `ampsim.core.pipeline`, the pure model of this class). This file
imports no torch, so that it can be stressed on an interpreter without the GIL.
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
    """The scaler was closed, or its background work failed (then ``__cause__`` says how)."""


class Changes:
    """A lock, and the threads that wait until what it guards has changed; an interrupt at any point leaves it whole.

    `threading.Condition` is Python code, and CPython looks at signals there: Ctrl-C may leave its lock taken for
    ever, or free while `with` thinks that it has it. Here a lock is taken by `with` alone, which is C code for a
    Lock, and nobody holds one while waiting. So nothing has to be taken again.
    """

    def __init__(self, sync: Sync) -> None:
        self._sync = sync
        self.lock = sync.Lock()
        self._gates: list[Any] = []  # taken locks: in each, one thread waits

    def wait_for(self, look: Callable[[], T], timeout: float | None = None) -> T:
        """Return what `look` returns once that is true, or after `timeout` seconds; it is called with the lock held."""
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
        """Let all look again. For a caller that has the lock."""
        while self._gates:
            with suppress(RuntimeError):  # it is open: an interrupt struck here, the time before
                self._gates[-1].release()
            self._gates.pop()


@dataclass(frozen=True, eq=False)
class Ticket(Generic[V]):
    """One iteration's claim to one version, for life.

    Attributes:
        index: the iteration, counted from 0.
        version: how many updates `value` has seen.
        value: after[version], immutable.
    """

    index: int
    version: int
    value: V


@dataclass(frozen=True)
class _Book(Generic[V]):
    """All that is known at one moment. Never changed, only replaced whole: one reference store is atomic."""

    versions: tuple[V, ...]  # after[base], ..., after[applied]: those a ticket may still ask for
    applied: int  # updates applied
    begun: int  # tickets begun
    tickets: tuple[Ticket[V], ...] = ()  # outstanding, oldest first
    floor: int = 0  # no later ticket carries an older version

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
        kept = applied - max(0, self.begun - depth, floor) + 1  # from what the next ticket carries
        versions = (*self.versions, made)[-max(1, kept) :]
        return _Book(
            versions, applied, self.begun, self.tickets[1:], floor
        )  # `replace` takes three times as long


class Register(Generic[V]):
    """Versions and tickets.

    Guarantees:
        * ``after[j + 1]`` is made from ``after[j]`` exactly once, in ticket order.
        * A ticket's version never changes, and versions never decrease from one ticket to the next.
        * At most ``depth + 1`` tickets are outstanding; `begin` waits for room.
        * A call that raises, be it by an interrupt, has changed nothing or everything, never half.
        * `newest`, `applied`, `begun`, `outstanding`, `known` and `coming` never wait.
        * `close` wakes every waiter; whoever waits then gets ClosedError, with its cause.

    Assumes:
        * Values are immutable, or nobody writes them.
        * An `advance` function does not call back into the register.

    ============== ============================== ===================
    attribute      written                        read
    ============== ============================== ===================
    ``_book``      under the lock, whole          anywhere, lock-free
    ``_closed``    under the lock, once           anywhere, lock-free
    ============== ============================== ===================

    Each change notifies first and stores last, in one assignment: those who wait need the lock to look, so
    they see no difference, and an interrupt in between leaves a waiter that looks in vain, not one that sleeps.

    `sync` is the namespace that Lock comes from; a test passes its scheduler's.
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
        """The version made last."""
        return self._book.versions[-1]

    @property
    def applied(self) -> int:
        """Updates applied."""
        return self._book.applied

    @property
    def begun(self) -> int:
        """Tickets begun."""
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
        """Return what the next ticket will carry, or the newest version where that one does not exist yet."""
        book = self._book
        return book.version(min(book.next_version(self.depth), book.applied))

    def begin(self, timeout: float | None = None) -> Ticket[V]:
        """Begin the next ticket. Waits until the version it carries exists; TimeoutError after `timeout` seconds.

        A ticket that an interrupt keeps from its caller is taken back, unless there is a later one already.
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
                f"no room for a ticket in {timeout} s: tickets {numbers} await update()"
            )
        return ticket

    def current(self, first: int = 0) -> Ticket[V]:
        """Return `known`, and where there is none begin the next ticket, which may wait as `begin` does.

        One ticket for all who ask at once; and if an interrupt keeps it from its caller, for the next to ask.
        """
        ticket = self._changed.wait_for(lambda: self._known_or_begun(first))
        assert ticket is not None  # noqa: S101 - without a timeout it waits until there is one
        return ticket

    def _known_or_begun(self, first: int) -> Ticket[V] | None:
        self.check_open()
        return self.known(first) or self._begin()

    def _begin(self) -> Ticket[V] | None:
        """Begin the next ticket if the version that it carries exists."""
        self.check_open()
        if not self._has_next():
            return None
        book = self._book.with_ticket(self.depth)
        self._book = book
        return book.tickets[-1]

    def peek(self) -> V:
        """Return what the next ticket will carry. Waits until it exists."""

        def look() -> list[V]:
            if self._has_next():
                return [self.coming()]
            self.check_open()
            return []

        return self._changed.wait_for(look)[0]

    def _has_next(self) -> bool:
        return self._book.next_version(self.depth) <= self._book.applied

    def apply(self, ticket: Ticket[V], advance: Callable[[V], V], *, is_async: bool = True) -> V:
        """Make ``after[ticket.index + 1] = advance(after[ticket.index])`` and publish it.

        `advance` runs outside the lock: it may wait for a device. If it raises, nothing has changed and the
        ticket stays outstanding. Raises RuntimeError for a ticket that is not the next; of two threads that
        apply the same one, the slower gets it and what it made is dropped.
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
                f"ticket {ticket.index} is another scaler's, or from before load_state_dict()"
            )

    def pending(self) -> tuple[V, ...]:
        """Return what a checkpoint must hold: the version the next ticket carries, and every newer one.

        Raises RuntimeError while tickets are outstanding.
        """
        book = self._book
        if book.tickets:
            numbers = ", ".join(str(ticket.index) for ticket in book.tickets)
            raise RuntimeError(
                f"saved before the update() of ticket number {numbers}: expected none to come; save after it"
            )
        return book.versions[book.next_version(self.depth) - book.applied - 1 :]

    def restore(self, versions: tuple[V, ...], also: Callable[[], object] = bool) -> None:
        """Start again from what `pending` returned, at most depth + 1 versions. Outstanding tickets are void.

        `also` is one call of C code, which changes what must change with it: an interrupt strikes before or after both.
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
        """Refuse calls from now on, and wake the threads that wait. Idempotent; the first cause stays."""
        with self._lock:
            self._changed.notify_all()
            self._closed = self._closed or cause or True

    def after_fork(self, cause: BaseException | None) -> None:
        """Make the locks anew in a forked child, and close if there is a cause."""
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
            raise ClosedError(f"this scaler takes no more work: {text}; make a new one") from cause
