"""Turns finished steps into records, in order, and writes them to the sinks."""

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from ampsim.core.json_lines import Record
from ampsim.core.validation import as_int
from ampsim.runs.record.measure import on_host
from ampsim.runs.record.run_file import RunFile
from ampsim.runs.record.sinks import Sink, sink
from ampsim.runs.record.stalled_parameters import StalledParameters
from ampsim.runs.record.step import Step

_MOST, _LONGEST = 32, 0.1

OnSkip = Callable[[Record], None]


class Writer:
    """A queue of steps whose values are on their way to the host.

    Args:
        to: Destination, or list of destinations, see `sinks.sink`.
        header: Header of the run.
        first_step: Number of the first record; None continues after the last record of an existing
            file.
        names: Names of the parameters.
        stalled: Detector of stalled parameters, or None.
        on_skip: Function called with the record of each skipped step.

    Attributes:
        skipped: Whether a step of the last record was skipped.
    """

    def __init__(
        self,
        to: Any,
        header: Mapping[str, object],
        *,
        first_step: int | None,
        names: dict[Tensor, str],
        stalled: StalledParameters | None,
        on_skip: OnSkip | None,
    ) -> None:
        self._lock = threading.RLock()  # an on_skip may log, or close the run
        self._waiting: deque[Step] = deque()
        self._names, self._stalled, self._on_skip = names, stalled, on_skip
        self._held: Record | None = (
            None  # the last record; `close` may add values to it
        )
        self._written_at = time.monotonic()
        self._warned: set[str] = set()
        self._sinks: list[Sink] = []
        self.skipped = False
        with ExitStack() as opened:
            opened.callback(self._close_sinks)
            for destination in to if isinstance(to, list | tuple) else [to]:
                self._sinks.append(sink(destination, header))
            if first_step is None:
                first_step = self._step_after_earlier_run()
            self._next = as_int("first_step", first_step, 0, "steps are counted from 0")
            opened.pop_all()

    def _step_after_earlier_run(self) -> int:
        """Return the step after the last one of the files; warn of a file that has a run."""
        first_step = 0
        for file in self._sinks:
            if isinstance(file, RunFile) and file.next_step:
                text = (
                    f"{file.path} already has a run with {file.next_step:,} steps; this run is appended "
                    "to it. For a new run, pass another path or delete the file; to resume the run, "
                    f"pass first_step={file.next_step}"
                )
                warnings.warn(text, RuntimeWarning, stacklevel=4)
                first_step = max(first_step, file.next_step)
        return first_step

    def add(self, step: Step) -> None:
        """Add a finished step."""
        with self._lock:
            self._waiting.append(step)

    def is_due(self) -> bool:
        """Return whether records should be written now.

        Building and writing a record takes a fraction of the time if it follows others, so short
        steps share the work. A killed process loses at most `_MOST` records or those of the last
        `_LONGEST` seconds.
        """
        return (
            self._on_skip is not None
            or len(self._waiting) >= _MOST
            or time.monotonic() - self._written_at > _LONGEST
        )

    def write(self, *, wait: bool, last: bool = False) -> None:
        """Write the records that have arrived, in order.

        Args:
            wait: Whether to wait for the device and write all records.
            last: Whether to write the last record too, to which `close` may add values.
        """
        skips = []
        with self._lock:
            while self._waiting and (wait or self._waiting[0].has_arrived()):
                record = self._finish(self._waiting.popleft())
                if self.skipped:
                    skips.append(record)
            if last:
                self._put()
            self._written_at = time.monotonic()
        if self._on_skip is not None:
            for record in skips:
                self._on_skip(record)

    def close(self, values: Mapping[str, Any]) -> None:
        """Write all records and close the sinks, even if `on_skip` raises.

        Args:
            values: Values that were logged after the last record, which are added to it.
        """
        with ExitStack() as last:
            last.callback(self._close_sinks)
            last.callback(self._put, values)
            self.write(wait=True)

    def warn(
        self, error: Exception, what: str = "parts of the record are missing"
    ) -> None:
        """Warn once about an error that must not stop training."""
        text = f"watching: {what}: {type(error).__name__}: {error}"
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _finish(self, step: Step) -> Record:
        """Build the record of a step, and write the one before it."""
        record = step.record(self._next, self._names)
        self._next += 1
        self.skipped = record.get("skipped", False)
        if self._stalled and (text := self._stalled.warning(step, record)):
            record["warning"] = text
            warnings.warn(
                f"step {record['step']}: {text}", RuntimeWarning, stacklevel=2
            )
        self._put()
        self._held = record
        return record

    def _put(self, values: Mapping[str, Any] = {}) -> None:
        """Write the held record, with values that were logged after it, to the sinks."""
        if self._held is None:
            return
        record, self._held = self._held, None
        record |= {name: on_host(value) for name, value in values.items()}
        for each in list(self._sinks):
            try:
                each.append(record)
            except Exception as error:  # a full disk must not stop training
                self._sinks.remove(each)
                what = f"the record of step {record['step']} and all later ones are not written"
                self.warn(error, what)

    def _close_sinks(self) -> None:
        sinks, self._sinks = self._sinks, []
        for each in sinks:
            each.close()
