"""Traces: runs that were recorded of other frameworks' scalers, in JSON Lines.

A trace holds the framework's own parameters, an overflow flag per update, and the scale after each
update as a hexadecimal float, which is exact. A scaler that raised has the update, the type, and
the text of the exception in ``raised``.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ampsim.core import dialects
from ampsim.core.conformance_vectors import parse_scale
from ampsim.core.json_lines import Record, read_objects
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states

# Recorded runs are not rewritten: recorded parameter name -> current parameter name.
RECORDED = {
    "init": "init_scale",
    "growth": "growth_factor",
    "backoff": "backoff_factor",
    "interval": "growth_interval",
}


@dataclass(frozen=True)
class Trace:
    """A recorded run of one scaler.

    Attributes:
        system: Name of a dialect, see `ampsim.core.dialects.names`.
        params: Parameters under the framework's own names at the time.
        found_inf: One flag per update.
        scale: Scale after each update that did not raise.
        sequence: Name of the scenario.
        is_async: For RoundPipe, one flag per update: whether it was delayed.
        raised: Step, type, and msg of the exception that ended the run; None if it did not raise.
    """

    system: str
    params: Mapping[str, Any]
    found_inf: tuple[bool, ...]
    scale: tuple[float, ...]
    sequence: str = ""
    is_async: tuple[bool | None, ...] | None = None
    raised: Mapping[str, object] | None = None

    def rule(self) -> Rule:
        """Return the rule of this trace."""
        dialect = dialects.ALL[self.system]
        own = {*dialect.parameters, *dialect.options}
        current = {
            name: name if name in own else RECORDED.get(name, name)
            for name in self.params
        }
        return dialects.get(
            self.system, **{current[name]: value for name, value in self.params.items()}
        )

    def is_repeated(self) -> bool:
        """Return whether the reference state machine does the same, to the last bit."""
        scales = list[str]()
        raised = None
        try:
            for state in states(self.rule(), self.found_inf, is_async=self.is_async):
                scales.append(repr(state.scale))
        except Exception as error:
            step = len(scales)
            kind = type(error).__name__
            raised = {"step": step, "type": kind, "msg": str(error)}
        return (scales, raised) == ([*map(repr, self.scale)], self.raised)


def read(path: str | os.PathLike[str]) -> Iterator[Trace]:
    """Yield the traces of a ``.jsonl`` or ``.jsonl.gz`` file, one by one.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If a line is not JSON; the traces before it are yielded first.
    """
    for _, record in read_objects(path):
        if "provenance" not in record:
            yield _trace(record)


def _trace(record: Record) -> Trace:
    late = record.get("is_async")
    return Trace(
        record["system"],
        record["params"],
        tuple(map(bool, record["found_inf"])),
        tuple(map(parse_scale, record["scale"])),
        record.get("sequence", ""),
        None if late is None else tuple(late),
        record.get("raised") or None,
    )
