"""What was done to each optimizer within one ticket: its stage, what its gradients were found to be."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.torch_model.protocol import Stage as Stage


@dataclass(eq=False)
class Record:
    """One optimizer within one ticket. Written by the thread that holds it, see `Ledger.holding`."""

    stage: Stage = Stage.READY
    found_inf: dict[torch.device, Tensor] = field(default_factory=dict)  # (), float32, 0.0 or 1.0
    folded: Tensor | None = None  # (), float32: what the gradients are still to be divided by
    observed: Any = None  # what a policy needs to know of the gradients, see kinds
    holder: int | None = None  # ident of the thread that unscales or steps this optimizer now

    def found_on(self, device: torch.device) -> Tensor:
        """This optimizer's flag on a device, made when it is first asked for."""
        if device not in self.found_inf:
            self.found_inf[device] = torch.zeros((), dtype=torch.float32, device=device)
        return self.found_inf[device]

    def check_unscalable(self) -> None:
        """Raise torch's error unless READY."""
        if self.stage is Stage.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if self.stage is Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")

    def check_steppable(self) -> None:
        """Raise torch's error if STEPPED."""
        if self.stage is Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")

    def forget(self) -> None:
        """Back to the beginning, after an unscale that failed."""
        self.found_inf.clear()
        self.stage, self.folded, self.observed = Stage.READY, None, None


class Ledger:
    """The records of all outstanding tickets.

    Keyed by the optimizers themselves: they live while they are in here, so that no new one takes the
    identity of an old one.
    """

    def __init__(self, *, sync: Any = threading) -> None:
        self._sync = sync
        self._lock = sync.Lock()
        self._records: dict[int, dict[Optimizer, Record]] = {}  # by ticket index

    def of(self, ticket: int) -> dict[Optimizer, Record]:
        """The records of one ticket."""
        return self._records.get(ticket, {})

    def __bool__(self) -> bool:
        """Whether anything is recorded."""
        return any(self._records.values())

    @contextmanager
    def holding(self, ticket: int, optimizer: Optimizer) -> Iterator[Record]:
        """This optimizer's record, for one thread at a time; RuntimeError for a second one."""
        me, held = self._sync.get_ident(), None
        try:
            with self._lock:
                record = self._records.setdefault(ticket, {}).setdefault(optimizer, Record())
                if record.holder not in (None, me):
                    raise RuntimeError(
                        f"another thread unscales or steps this {type(optimizer).__name__} just now: expected one "
                        "thread at a time; order the calls, or step it with another ticket"
                    )
                if record.holder is None:
                    record.holder, held = me, record
            yield record
        finally:
            if held is not None:
                held.holder = None

    def flags(self, ticket: int) -> list[Tensor]:
        """Every found_inf of a ticket, shape (), float32, on its own device."""
        return [flag for record in list(self.of(ticket).values()) for flag in record.found_inf.values()]

    def observed(self, ticket: int) -> list[Any]:
        """What was observed of a ticket's gradients."""
        return [record.observed for record in list(self.of(ticket).values()) if record.observed is not None]

    def close(self, ticket: int) -> None:
        """Forget a ticket: it was updated."""
        self._records.pop(ticket, None)

    def clear(self) -> None:
        """Forget everything."""
        self._records = {}

    def after_fork(self) -> None:
        """In a child: the lock may be held by a thread that is not there."""
        self._lock = self._sync.Lock()


@dataclass(frozen=True)
class StepReport:
    """What the steps of one iteration did. Reading it waits for the device; making it does not.

    True for fused optimizers too, whose ``step`` is called although their kernel skips.
    """

    ticket: int = -1  # of the iteration it is about
    _steps: tuple[tuple["weakref.ref[Optimizer]", tuple[Tensor, ...]], ...] = ()

    def __iter__(self) -> Iterator[Optimizer]:
        """The optimizers that were stepped or skipped and still live."""
        return (optimizer for ref, _ in self._steps if (optimizer := ref()) is not None)

    def skipped_by(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's step was skipped. KeyError if it had none."""
        for ref, flags in self._steps:
            if ref() is optimizer:
                return any(flag.item() != 0 for flag in flags)
        raise KeyError(f"{type(optimizer).__name__} had no step in this iteration: call scaler.step(optimizer) first")

    @property
    def skipped(self) -> bool:
        """Whether any optimizer's step was skipped."""
        return any(flag.item() != 0 for _, flags in self._steps for flag in flags)

    def __bool__(self) -> bool:
        raise TypeError("a StepReport is neither true nor false: read .skipped, or .skipped_by(optimizer)")

    def adding(self, ticket: int, optimizer: Optimizer, record: Record) -> "StepReport":
        """This report with one more optimizer; a new one if the ticket is another."""
        # The tensors are clones: a record's own may still be summed into.
        flags = tuple(flag.clone() for flag in record.found_inf.values())
        steps = self._steps if ticket == self.ticket else ()
        return StepReport(ticket, (*steps, (weakref.ref(optimizer), flags)))
