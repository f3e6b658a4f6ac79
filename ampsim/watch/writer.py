"""Turns finished steps into records, in order, and writes them to the sinks."""

import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from ampsim.core.validation import as_int
from ampsim.watch.sinks import Sink, sink
from ampsim.watch.stalled_parameters import Standstill
from ampsim.watch.step import Record, Step

OnSkip = Callable[[Record], None]


class Writer:
    """A queue of steps whose values are on their way to the host.

    Args:
        to: Destination, or list of destinations, see `sinks.sink`.
        run: Header of the run.
        first_step: Number of the first record; None continues after the last record of an existing file.
        standstill: Detector of stalled parameters, or None.
        on_skip: Function called with the record of each skipped step.
    """

    def __init__(
        self,
        to: Any,
        run: Mapping[str, object],
        first_step: int | None,
        standstill: Standstill | None,
        on_skip: OnSkip | None,
    ) -> None:
        self._lock = threading.RLock()  # an on_skip may log, or close the run
        self._waiting: deque[Step] = deque()
        self._standstill, self._on_skip = standstill, on_skip
        self._held: tuple[Step, Record] | None = (
            None  # the last record, to which values may still be logged
        )
        self._written = self._skips = 0
        self._warned: set[str] = set()
        self._sinks: list[Sink] = []
        self.skipped = False
        """Whether a step of the last written record was skipped."""
        with ExitStack() as opened:
            opened.callback(self._close_sinks)
            for each in to if isinstance(to, list | tuple) else [to]:
                self._sinks.append(sink(each, run))
            if first_step is None:
                first_step = max((getattr(each, "next_step", 0) for each in self._sinks), default=0)
            self._first_step = as_int("first_step", first_step, 0, "steps are counted from 0")
            opened.pop_all()

    def add(self, step: Step) -> None:
        """Add a finished step."""
        with self._lock:
            self._waiting.append(step)

    def write(self, *, wait: bool, last: bool = False) -> None:
        """Write the records that have arrived, in order.

        Args:
            wait: Whether to wait for the device and write all records.
            last: Whether to write the last record too, although values may still be logged to it.
        """
        with self._lock:
            skips = []
            while self._waiting and (wait or self._waiting[0].fetched.arrived()):
                record = self._next_record()
                if self.skipped:
                    skips.append(record)
            if last:
                self._put()
        for record in skips if self._on_skip else ():
            self._on_skip(record)  # type: ignore[misc]

    def close(self) -> None:
        """Write all records and close the sinks, even if `on_skip` raises."""
        with ExitStack() as last:
            last.callback(self._close_sinks)
            last.callback(self._put)
            self.write(wait=True)

    def warn(self, error: Exception, what: str = "parts of the record are missing") -> None:
        """Warn once about an error that must not stop training."""
        text = f"watching: {what}: {type(error).__name__}: {error}"
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _next_record(self) -> Record:
        step = self._waiting.popleft()
        record, bits = step.on_host()
        record = {"step": self._first_step + self._written, **record}
        self._written += 1
        self.skipped = bool(record.get("skipped", False))
        self._skips += self.skipped
        if (
            self._standstill
            and bits
            and (alarm := self._standstill.alarm(bits, self._written, self._skips))
        ):
            record["warning"] = alarm
            warnings.warn(f"step {record['step']}: {alarm}", RuntimeWarning, stacklevel=2)
        self._put()
        self._held = step, record
        if not step.waits:
            self._put()
        return record

    def _put(self) -> None:
        """Write the held record to the sinks."""
        if self._held is None:
            return
        (step, record), self._held = self._held, None
        step.written = True
        record |= step.logged_late()
        for each in list(self._sinks):
            try:
                each.append(record)
            except Exception as error:  # a full disk must not stop training
                self._sinks.remove(each)
                self.warn(
                    error, f"the record of step {record['step']} and all later ones are not written"
                )

    def _close_sinks(self) -> None:
        sinks, self._sinks = self._sinks, []
        for each in sinks:
            each.close()
