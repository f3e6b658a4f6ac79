"""State of the asynchronous loss scaler: one immutable value, and pure transitions of it.

Theory of operation
-------------------
`ampsim.core.pipeline` says which version of the scale an iteration uses. Here the iterations in
flight are added: who works on which gradients, what was found in them, and which updates are on
their way. All of it is one `AsyncState`. A method of it returns the next state, or raises and
changes nothing. So a scaler needs one assignment per event, every thread reads a consistent state
without a lock, and a test can run any sequence of events without threads or tensors.

The life of an iteration::

    begin      a ticket that holds version max(0, i - depth) of the scale for good
    hold       a call takes one optimizer of the iteration; a second call raises
    complete   the call ends with the optimizer's next stage and the flags found in its gradients
    request    an update is sent to the optimizer's thread; without one this event is missing
    update     the update publishes the next version, and the iteration is over

An interrupt may strike between any two bytecodes. Each event is one assignment, so an interrupt
strikes before or after it. Only the end of a `Call` must not be lost, so that is an attribute of
the call and no transition.
"""

import enum
from dataclasses import dataclass
from typing import Any

from ampsim.core import machine, refusals
from ampsim.core.machine import Rule, State
from ampsim.core.pipeline import WouldBlockError, check_turn


class ClosedError(RuntimeError):
    """Raised if a scaler or an optimizer thread takes no more work.

    Its ``__cause__`` says why.
    """


class ForkedError(ClosedError):
    """Raised in a forked child process, in which the threads of the parent do not exist."""


class WithdrawnError(RuntimeError):
    """Raised if a requested update was withdrawn before it ran: it has nothing to do."""


class Stage(enum.Enum):
    """How far an optimizer has come in an iteration, with torch's names."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class Call:
    """A call that works on the gradients of one optimizer; only its own thread writes it.

    Args:
        ticket: Ticket of the iteration.
        optimizer: Optimizer that owns the gradients.
        method: Name of the method, for errors.
    """

    def __init__(self, ticket: "Ticket", optimizer: Any, method: str = "step") -> None:
        self.ticket = ticket
        self.optimizer = optimizer
        self.method = method

    is_over = False
    """Whether it has returned or raised: one store, which no interrupt can prevent."""
    is_writing = False
    """Whether it may have written gradients, and has not reached `AsyncState.complete`."""


@dataclass(frozen=True, eq=False)
class StepRecord:
    """One optimizer in one iteration."""

    optimizer: Any
    stage: Stage = Stage.READY
    # Whether gradients were not finite: one flag per device, and a bool once `step` has read them.
    flags: tuple[Any, ...] = ()
    call: Call | None = (
        None  # the call that holds the optimizer, or that ended without `complete`
    )

    @property
    def is_held(self) -> bool:
        """Whether a call works on the optimizer now."""
        return self.call is not None and not self.call.is_over

    @property
    def is_broken(self) -> bool:
        """Whether a call ended halfway: nobody knows which gradients it has divided."""
        return self.call is not None and self.call.is_over and self.call.is_writing


@dataclass(frozen=True, eq=False)
class Ticket:
    """The handle of one iteration.

    Attributes:
        index: Number of the iteration, from 0.
        version: Number of updates that `value` has seen.
        value: The state of the loss scale in the iteration; it never changes.
        key: An integer that no other ticket of the process has.
    """

    index: int
    version: int
    value: State
    key: int


@dataclass(frozen=True, eq=False)
class Iteration:
    """An iteration in flight: its ticket, and its optimizers in the order of their first call."""

    ticket: Ticket
    records: tuple[StepRecord, ...] = ()

    def record(self, optimizer: object) -> StepRecord:
        """Return the record of an optimizer; a new one if it had no call yet."""
        for record in self.records:
            if record.optimizer is optimizer:
                return record
        return StepRecord(optimizer)

    def replace_record(self, old: StepRecord, new: StepRecord) -> "Iteration":
        """Return the iteration with another record in the place of `old`."""
        kept = tuple(record for record in self.records if record is not old)
        return Iteration(self.ticket, (*kept, new))


@dataclass(frozen=True, eq=False)
class AsyncState:
    """All that is known of a scaler at one moment.

    Attributes:
        rule: Constants of the scaler.
        depth: Number of updates by which the scale may lag.
        versions: The newest versions, at most depth + 1.
        applied: Number of updates applied; also the index of the oldest iteration in flight.
        iterations: Iterations in flight, oldest first.
        requests: One token per update on its way; these updates belong to the oldest iterations.
        floor: Later tickets use no older version.
        is_started: Whether an iteration has begun; torch's scaler has no scale before.
        uses_tickets: Whether the loop passes tickets.
        last_steps: Records of the last iteration that was updated.
        observers: What is notified of gradients and updates.
        closed: Why the scaler takes no more work; None while it does.
    """

    rule: Rule
    depth: int
    versions: tuple[State, ...]
    applied: int = 0
    iterations: tuple[Iteration, ...] = ()
    requests: tuple[object, ...] = ()
    floor: int = 0
    is_started: bool = False
    uses_tickets: bool = False
    last_steps: tuple[StepRecord, ...] = ()
    observers: tuple[Any, ...] = ()
    closed: BaseException | None = None

    # -------------------------------------------------------------------------------------- reading

    @property
    def begun(self) -> int:
        """Number of tickets begun; also the index of the next one."""
        return self.applied + len(self.iterations)

    @property
    def newest(self) -> State:
        """The version after all updates so far."""
        return self.versions[-1]

    @property
    def next_version(self) -> int:
        """The version of the next ticket, which may not exist yet."""
        return max(0, self.begun - self.depth, self.floor)

    def next_value(self) -> State:
        """Return the scale of the next ticket; WouldBlockError if it does not exist yet."""
        number = self.next_version
        if number > self.applied:
            raise WouldBlockError(
                f"ticket {self.begun} uses version {number} of the scale, and {self.applied} "
                f"updates were made: expected at most {self.depth + 1} outstanding tickets; "
                f"update ticket {self.applied}"
            )
        return self.versions[number - self.applied - 1]

    def check_open(self) -> None:
        """Raise ClosedError if the scaler takes no more work."""
        if self.closed is not None:
            raise ClosedError(
                f"this scaler takes no more work: {self.closed}; create a new one and load the "
                "state_dict() of this one"
            ) from self.closed

    def check_runs(self) -> None:
        """Raise ClosedError if a thread should not wait for a job: its executor may have ended."""
        self.check_open()

    def iteration(self, ticket: Ticket, method: str) -> Iteration:
        """Return the iteration of a ticket; RuntimeError unless it is in flight."""
        place = ticket.index - self.applied
        if (
            0 <= place < len(self.iterations)
            and self.iterations[place].ticket is ticket
        ):
            return self.iterations[place]
        raise RuntimeError(
            f"{method} with ticket {ticket.index}: expected a ticket that begin_iteration() of "
            "this scaler returned and update() has not ended; begin another iteration"
        )

    def implied_ticket(self, *, runs_steps: bool) -> Ticket | None:
        """Return what a call without a ticket means, or None if no iteration is in flight.

        Derived and not stored, so that an interrupt cannot leave it wrong.

        Args:
            runs_steps: Whether the caller is the optimizer's thread. There it is the oldest
                iteration. Elsewhere iterations whose update is on its way are over.
        """
        first = 0 if runs_steps else len(self.requests)
        for iteration in self.iterations[first:]:
            return iteration.ticket
        return None

    def saved_versions(self) -> tuple[State, ...]:
        """Return the versions for a checkpoint.

        They are those of the oldest iteration in flight, or else of the next one, and later ones.
        """
        first = self.next_version
        if self.iterations:
            first = self.iterations[0].ticket.version
        return self.versions[first - self.applied - 1 :]

    # ---------------------------------------------------------------------------------- transitions

    def replace(self, **changes: Any) -> "AsyncState":
        """Return a copy with some fields changed.

        `dataclasses.replace` takes three times as long, and a training step makes five of these.
        """
        made = object.__new__(AsyncState)
        vars(made).update(vars(self))
        vars(made).update(changes)
        return made

    def begin(self, key: int, *, uses_tickets: bool = True) -> "AsyncState":
        """Begin the next iteration; WouldBlockError if its version does not exist yet."""
        self.check_open()
        number = self.next_version
        value = self.next_value()
        begun = Iteration(Ticket(self.begun, number, value, key))
        return self.replace(
            iterations=(*self.iterations, begun),
            is_started=True,
            uses_tickets=self.uses_tickets or uses_tickets,
        )

    def begin_if_none(self, key: int, *, runs_steps: bool) -> "AsyncState":
        """Begin an iteration if a call without a ticket has none to mean."""
        self.check_open()
        if self.implied_ticket(runs_steps=runs_steps) is not None:
            return self
        return self.begin(key, uses_tickets=False)

    def withdraw(self, key: int) -> "AsyncState":
        """Take back a ticket that an interrupt kept from its caller, if it is the newest."""
        if len(self.requests) == len(self.iterations):
            return self  # its update is on its way, or there is none
        newest = self.iterations[-1]
        if newest.ticket.key != key or newest.records:
            return self
        return self.replace(iterations=self.iterations[:-1])

    def _with_iteration(self, old: Iteration, new: Iteration) -> "AsyncState":
        return self.replace(
            iterations=tuple(new if one is old else one for one in self.iterations)
        )

    def hold(self, call: Call) -> "AsyncState":
        """Give an optimizer to a call.

        Raises RuntimeError if another call has it, or if one was interrupted.
        """
        self.check_open()
        optimizer = call.optimizer
        method = call.method
        iteration = self.iteration(call.ticket, method)
        record = iteration.record(optimizer)
        if record.is_held:
            raise RuntimeError(
                f"{method} while another call works on this {type(optimizer).__name__}: expected "
                "one call at a time for one optimizer and ticket; let the other call end before"
            )
        if record.is_broken:
            raise RuntimeError(
                f"{method} after an interrupted call, which may have divided some gradients: "
                "expected new gradients; zero these, scale the loss again, and run backward, or "
                "call update(new_scale)"
            )
        held = StepRecord(optimizer, record.stage, record.flags, call)
        return self._with_iteration(iteration, iteration.replace_record(record, held))

    def complete(
        self, call: Call, stage: Stage, flags: tuple[Any, ...]
    ) -> "AsyncState":
        """End a call that holds an optimizer. What began before `close` may end after it."""
        iteration = self.iteration(call.ticket, call.method)
        held = next(record for record in iteration.records if record.call is call)
        done = StepRecord(held.optimizer, stage, flags)
        return self._with_iteration(iteration, iteration.replace_record(held, done))

    def forget_broken(self, ticket: Ticket) -> "AsyncState":
        """Forget the gradients that an interrupt left half divided: the loss is scaled again."""
        iteration = self.iteration(ticket, "scale")
        whole = tuple(record for record in iteration.records if not record.is_broken)
        if len(whole) == len(iteration.records):
            return self
        return self._with_iteration(iteration, Iteration(ticket, whole))

    def request(self, ticket: Ticket, token: object) -> "AsyncState":
        """Note that an update is on its way; RuntimeError unless it is the next in order."""
        self.check_open()
        check_turn(ticket.index, self.applied + len(self.requests), self.begun)
        self.iteration(ticket, "update")
        return self.replace(requests=(*self.requests, token))

    def cancel_request(self, token: object) -> "AsyncState":
        """Withdraw an update that is on its way, and those behind it."""
        if token not in self.requests:
            return self
        return self.replace(requests=self.requests[: self.requests.index(token)])

    def _ending(self, ticket: Ticket, token: object = None) -> Iteration:
        """Return the iteration that an update ends; RuntimeError if it is not its turn."""
        self.check_open()
        if token is not None and token not in self.requests:
            raise WithdrawnError(f"the update of ticket {ticket.index} was withdrawn")
        check_turn(ticket.index, self.applied, self.begun)
        if token is None and self.requests:
            raise RuntimeError(
                f"update of ticket {ticket.index} while another update of it is on its way: "
                "expected one per iteration; remove this one"
            )
        iteration = self.iteration(ticket, "update")
        if any(record.is_held for record in iteration.records):
            raise RuntimeError(
                f"update of ticket {ticket.index} while a call works on its gradients: expected "
                "all steps of the iteration to have returned; call update() after them"
            )
        return iteration

    def update(
        self,
        ticket: Ticket,
        token: object = None,
        new_scale: float | None = None,
        *,
        synchronous: bool = False,
    ) -> "AsyncState":
        """End an iteration, and publish the version after it.

        Args:
            ticket: Ticket of the iteration.
            token: Token of the request, if the update was sent to another thread.
            new_scale: Scale to set; None updates the scale by the flags of the iteration.
            synchronous: Whether later tickets use no older version.

        Returns:
            The state after the update.

        Raises:
            AssertionError: If no gradient was checked in the iteration, as in torch.
            RuntimeError: If it is not the ticket's turn, or a call works on its gradients.
            WithdrawnError: If the request was withdrawn.
        """
        ended = self._ending(ticket, token)
        flags = [flag for record in ended.records for flag in record.flags]
        if new_scale is not None:
            made = machine.override(self.rule, self.newest, new_scale)
        elif flags:
            # A flag that no step has read waits for its device, here with the lock held.
            made = machine.update(self.rule, self.newest, any(flags))
        else:
            raise refusals.NOTHING_CHECKED_AT_ALL.error()
        applied = self.applied + 1
        # No ticket lags by more than `depth`, so no older version is needed.
        return self.replace(
            versions=(*self.versions, made)[-(self.depth + 1) :],
            applied=applied,
            iterations=self.iterations[1:],
            requests=self.requests[1:],
            floor=applied if synchronous else self.floor,
            last_steps=ended.records,
        )

    def load(self, rule: Rule, versions: tuple[State, ...]) -> "AsyncState":
        """Start again from the versions of a checkpoint. Iterations in flight are void."""
        self.check_open()
        return AsyncState(
            rule,
            self.depth,
            versions,
            applied=len(versions) - 1,
            is_started=self.is_started,
            observers=self.observers,
        )

    def close(self, cause: BaseException) -> "AsyncState":
        """Take no more work.

        The first cause stays, but a fork replaces it: a waiting thread must know of it.
        """
        if self.closed is not None and not isinstance(cause, ForkedError):
            return self
        return self.replace(closed=cause)
