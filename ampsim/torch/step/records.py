"""Records of each optimizer within one ticket: its stage and its found_inf."""

import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import _refresh_per_optimizer_state
from torch.optim import Optimizer

from ampsim.core.torch_model import refusals
from ampsim.core.torch_model.protocol import Stage as Stage
from ampsim.torch.gradients.unscale import FoundInf
from ampsim.torch.state.device import event_on
from ampsim.torch.state.version import DeviceObservation, Outcome
from ampsim.torch.threads.register import Sync

T = TypeVar("T")
_CPU = torch.device("cpu")


@dataclass(eq=False, slots=True)
class Record:
    """One optimizer within one ticket. Written by the thread that holds it, see `StepRecords.holding`."""

    optimizer: Any = (
        None  # kept alive once a call has held the record, so that no other takes over its id
    )
    stage: Stage = Stage.READY
    folded: Tensor | None = None  # (), float32: what the gradients are still to be divided by
    observed: DeviceObservation | None = None  # what a policy needs to know of the gradients
    is_held: bool = False  # some thread unscales or steps this optimizer now
    notes: dict[str, Any] = field(default_factory=dict)  # a client's own, beside torch's names
    shown: enum.Enum | None = None  # the stage as a client last wrote it
    _flags: FoundInf = field(default_factory=FoundInf)
    _expected: Callable[[], FoundInf] | None = None  # waits for what takes their place

    @property
    def found_inf(self) -> FoundInf:
        """Flags of the gradients by device. Waits for other ranks, if there are any."""
        if self._expected is not None:
            self._flags = self._expected()
            self._expected = None  # not before: what failed to come is missed at the next look too
        return self._flags

    @found_inf.setter
    def found_inf(self, flags: FoundInf) -> None:
        self._flags, self._expected = flags, None

    def expect(self, flags: Callable[[], FoundInf]) -> None:
        """Take the place of `found_inf` by what a call returns, which is made when somebody looks."""
        self._expected = flags

    @property
    def is_used(self) -> bool:
        """Whether anything was done to the optimizer."""
        return self.stage is not Stage.READY or bool(self.found_inf)

    @property
    def home(self) -> torch.device:
        """Where the first flag is: the CPU if there is none."""
        return next(iter(self.found_inf), _CPU)

    def check_unscalable(self) -> None:
        """Raise torch's error unless READY."""
        if self.stage is Stage.UNSCALED:
            raise refusals.UNSCALED_TWICE.error()
        if self.stage is Stage.STEPPED:
            raise refusals.UNSCALED_LATE.error()

    def check_steppable(self) -> None:
        """Raise torch's error if STEPPED."""
        if self.stage is Stage.STEPPED:
            raise refusals.STEPPED_TWICE.error()

    def forget(self) -> None:
        """Return to the beginning, after an unscale that failed."""
        self.found_inf = FoundInf()
        self.move(Stage.READY)

    def move(self, stage: Stage) -> None:
        """Go to a stage by hand; what was found stays, and of READY what was left to do is forgotten."""
        self.stage = stage
        if stage is Stage.READY:
            self.folded = self.observed = None


class StepRecords:
    """The records of all outstanding tickets.

    Keyed by the id of an optimizer that its record keeps alive: a client's wrapper may have no hash, be equal to
    all others, and take no weak reference.
    """

    def __init__(self, *, sync: Sync = threading) -> None:
        self._sync = sync
        self.factory: Callable[[], Any] = (
            _refresh_per_optimizer_state  # of states: torch's, or a client's
        )
        self.lock = (
            sync.Lock()
        )  # held by an update from its look at the records until they are forgotten
        self._records: dict[int, dict[int, Record]] = {}  # by ticket index, then id
        self._looked_at: dict[int, Record] = {}  # by id, before a ticket had them

    def any_from(self, applied: int) -> bool:
        """Return whether a ticket from this number on has records; earlier tickets were updated."""
        noted = [
            ticket for ticket, records in self._records.items() if records and ticket >= applied
        ]
        return bool(noted) or any(record.is_used for record in self._looked_at.values())

    def holding(
        self,
        ticket: int,
        optimizer: Optimizer,
        check: Callable[[], object],
        work: Callable[[Record], T],
    ) -> T:
        """Return what `work` returns, which holds this optimizer's record; RuntimeError if some other call holds it.

        `check` raises unless the ticket is outstanding. No update can close it between that and the hold. This is not
        a context manager, whose Python code an interrupt could leave with the record held.
        """
        held = None
        try:
            with self.lock:
                check()
                record = self._of_ticket(ticket, optimizer)
                if record.is_held:
                    raise RuntimeError(
                        f"another call is unscaling or stepping this {type(optimizer).__name__}: expected one call at "
                        "a time, and none within another; order the calls, or step it with another ticket"
                    )
                record.is_held, held = True, record
            return work(record)
        finally:
            if held is not None:
                held.is_held = False

    def _of_ticket(self, ticket: int, optimizer: Optimizer) -> Record:
        records, key = self._records.setdefault(ticket, {}), id(optimizer)
        if (
            key not in records
        ):  # an interrupt between two lines leaves no record without its optimizer
            record = self._looked_at[key] if key in self._looked_at else Record()
            record.optimizer = optimizer
            records[key] = record
            self._looked_at.pop(key, None)
        return records[key]

    def looked_at(self, key: int) -> Record:
        """Return the newest record of an optimizer by its id; where there is none, the one that its next ticket has."""
        newest = self.by_id().get(key)
        return self._looked_at.setdefault(key, Record()) if newest is None else newest

    def drop(self, key: int) -> None:
        """Forget the newest record of an optimizer by its id; KeyError if there is none."""
        with self.lock:
            known = (self._looked_at, *self._records.values())
            del next((records for records in reversed(known) if key in records), self._looked_at)[
                key
            ]

    def renewed(self, ticket: int | None) -> "StepRecords":
        """Return records for restarted tickets; `ticket` gets the newest of the current records, if given."""
        renewed = StepRecords(sync=self._sync)
        renewed.factory = self.factory
        if ticket is not None:
            newest = self.by_id()
            renewed._records[ticket] = {
                key: record for key, record in newest.items() if record.optimizer is not None
            }
            renewed._looked_at = {
                key: record for key, record in newest.items() if record.optimizer is None
            }
        return renewed

    def move_on(self, ticket: int) -> None:
        """Give the next ticket the records that a load left to this one, which ended without a step."""
        with self.lock:
            if ticket in self._records:
                self._records[ticket + 1] = self._records.pop(ticket)

    def ticket_of(self, record: Record) -> int | None:
        """Return the ticket that holds this record, None if none has yet or it was updated."""
        key = id(record.optimizer)
        return next(
            (ticket for ticket, records in self._records.items() if records.get(key) is record),
            None,
        )

    def of(self, ticket: int) -> list[Record]:
        """List the records of a ticket."""
        return list(self._records.get(ticket, {}).values())

    def stage(self, ticket: int, optimizer: Optimizer) -> Stage:
        """Return how far an optimizer has come in a ticket."""
        record = self._records.get(ticket, {}).get(id(optimizer)) or self._looked_at.get(
            id(optimizer)
        )
        return Stage.READY if record is None else record.stage

    def by_id(self) -> dict[int, Record]:
        """Return the newest record of every optimizer in an outstanding ticket or looked at, by the optimizer's id."""
        with self.lock:
            known = (self._looked_at, *self._records.values())
            return {key: record for records in known for key, record in records.items()}

    def outcome(self, ticket: int, is_async: bool = True) -> Outcome:
        """Collect what all optimizers of a ticket found in their gradients. For a caller that has the lock."""
        records = [*self.of(ticket), *self._looked_at.values()]
        flags = [flag for record in records for flag in record.found_inf.values()]
        observed = [record.observed for record in records if record.observed is not None]
        return Outcome(flags, observed, is_async)

    def close(self, ticket: int) -> None:
        """Forget this ticket and those before: they were updated. For a caller that has the lock."""
        self._records = {other: kept for other, kept in self._records.items() if other > ticket}
        self._looked_at, self.factory = {}, _refresh_per_optimizer_state

    def after_fork(self) -> None:
        """Recreate the lock in a forked child, as a thread of the parent may hold it."""
        self.lock = self._sync.Lock()


class _Flag(NamedTuple):
    """A copy of what was found on one device, which any thread may read."""

    found_inf: Tensor
    ready: torch.cuda.Event | None  # recorded on the stream that made it

    def __bool__(self) -> bool:
        """Return whether the flag is set; waits for the device."""
        if self.ready is not None:
            torch.cuda.current_stream(self.found_inf.device).wait_event(self.ready)
        return self.found_inf.item() != 0


def _copied(flag: Tensor) -> _Flag | bool:
    """Copy a flag, of the CPU as a bool, which is had sooner."""
    if flag.is_cpu and not flag.is_cuda:  # as a test that plays streams on the CPU says
        return flag.item() != 0
    found_inf = flag.clone()
    # A graph's replay orders itself, and an event of its capture cannot be waited for outside of it.
    captured = flag.is_cuda and torch.cuda.is_current_stream_capturing()
    return _Flag(found_inf, None if captured else event_on(flag.device))


@dataclass(eq=False, slots=True)
class StepReport:
    """Immutable report of one iteration's steps. Reading a field waits for the device.

    It is correct for fused optimizers too, whose ``step`` is called although their kernel skips. It keeps references to
    its optimizers.
    """

    ticket: int = -1  # of the iteration it is about
    _all: list[tuple[Optimizer, list[_Flag | bool]]] = field(default_factory=list, repr=False)
    """Shared with later reports: a copy for each would take quadratic time."""
    _count: int = field(default=0, repr=False)  # those at the list's beginning are ours

    @property
    def _steps(self) -> Iterator[tuple[Optimizer, list[_Flag | bool]]]:
        return islice(self._all, self._count)

    def __iter__(self) -> Iterator[Optimizer]:
        """Iterate over the optimizers that were stepped or skipped."""
        return (optimizer for optimizer, _ in self._steps)

    def skipped_by(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer's step was skipped; raise KeyError if it had none."""
        for stepped, flags in self._steps:
            if stepped is optimizer:
                return any(flags)
        raise KeyError(
            f"{type(optimizer).__name__} had no step in this iteration: call scaler.step(optimizer) first"
        )

    @property
    def skipped(self) -> bool:
        """Whether any optimizer's step was skipped."""
        return any(any(flags) for _, flags in self._steps)

    def __bool__(self) -> bool:
        raise TypeError(
            "a StepReport is neither true nor false: read .skipped, or .skipped_by(optimizer)"
        )

    def adding(self, ticket: int, record: Record) -> "StepReport":
        """Add one more optimizer to this report, the newest, or to a new one if the ticket is another."""
        # The tensors are clones: a record's own may still be summed into.
        flags = [*map(_copied, record.found_inf.values())]
        steps = self._all if ticket == self.ticket else []
        if len(steps) > self._count:
            del steps[self._count :]  # left by a call that was interrupted
        steps.append((record.optimizer, flags))
        return StepReport(ticket, steps, len(steps))
