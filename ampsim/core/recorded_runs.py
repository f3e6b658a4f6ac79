"""Traces: recorded runs of loss scalers, and the files that store them.

A file is JSON Lines, optionally gzipped (``.gz``), with one trace per line, so that programs in any
language can read and write it. A first line ``{"provenance": {...}}`` is allowed. Scales are
written as hexadecimal floats (``float.hex``), which are exact, or ``inf``; decimal numbers are
read, too. Loading a file executes no code.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampsim.core import dialects
from ampsim.core.conformance_vectors import parse_scale
from ampsim.core.files import DamagedFileError
from ampsim.core.json_lines import read_objects
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states

# Recorded runs are not rewritten: recorded parameter name -> current parameter name.
RECORDED = {
    "init": "init_scale",
    "growth": "growth_factor",
    "backoff": "backoff_factor",
    "interval": "growth_interval",
}


def with_current_names(system: str, params: Mapping[str, object]) -> dict[str, object]:
    """Return recorded parameters of a dialect under their current names."""
    dialect = dialects.ALL.get(system)
    own = {*dialect.parameters, *dialect.options} if dialect else set()
    return {
        name if name in own else RECORDED.get(name, name): params[name]
        for name in params
    }


@dataclass(frozen=True)
class Raised:
    """An exception that a scaler raised.

    Attributes:
        step: The update that raised; counted from 0.
        type: Name of the exception class.
        msg: Text of the exception.
    """

    step: int
    type: str
    msg: str


@dataclass(frozen=True)
class Trace:
    """A recorded run of one scaler.

    Attributes:
        system: Name of a dialect, see `ampsim.core.dialects.names`.
        params: Parameters under the framework's own names.
        found_inf: One flag per update.
        scale: Scale after each update that did not raise.
        version: Version of the framework.
        sequence: Name of the scenario.
        is_async: For RoundPipe, one flag per update: whether it was delayed.
        raised: The exception that ended the run; None if it did not raise.
        notes: Other data; ignored in comparisons.
    """

    system: str
    params: Mapping[str, object]
    found_inf: tuple[bool, ...]
    scale: tuple[float, ...]
    version: str = ""
    sequence: str = ""
    is_async: tuple[bool | None, ...] | None = None
    raised: Raised | None = None
    notes: object = field(default=None, compare=False)

    def rule(self) -> Rule:
        """Return the rule of this trace."""
        return dialects.get(self.system, **with_current_names(self.system, self.params))

    def mismatch(self) -> str | None:
        """Compare the trace with the reference state machine.

        Returns:
            None if all scales are equal to the last bit, else a description of the first
            difference.

        Raises:
            KeyError: If there is no such dialect.
            TypeError: If a parameter is unknown or has an invalid type; see `dialects.get`.
            ValueError: If a parameter is out of range.
        """
        if not self.found_inf:
            return "no updates: expected at least one; record some, or omit the trace"
        rule, step, error = self.rule(), -1, None
        try:
            for step, state in enumerate(
                states(rule, self.found_inf, is_async=self.is_async)
            ):
                if step == len(self.scale):
                    return f"update {step}: expected {self._ending()}, the state machine continues with {state.scale!r}"
                if repr(state.scale) != repr(
                    self.scale[step]
                ):  # equal bits, or both NaN
                    return f"update {step}: expected {self.scale[step]!r}, the state machine has {state.scale!r}"
        except Exception as exception:
            error = exception
            step += 1
        raised = (
            None if error is None else Raised(step, type(error).__name__, str(error))
        )
        if raised == self.raised:
            return None
        return f"update {step}: expected {self._ending()}, the state machine raised {raised}"

    def _ending(self) -> str:
        return (
            f"{self.raised.type} at update {self.raised.step}"
            if self.raised
            else "no exception"
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Trace":
        """Return the trace in a JSON object; raise ValueError or TypeError if the object is
        invalid.
        """
        kinds = {"system": str, "params": dict, "found_inf": list, "scale": list}
        if missing := kinds.keys() - record.keys():
            raise ValueError(f"{', '.join(sorted(missing))} missing")
        for name, kind in kinds.items():
            if not isinstance(record[name], kind):
                raise ValueError(f"{name} {record[name]!r}: expected a {kind.__name__}")
        flags, scales = record["found_inf"], record["scale"]
        if any(flag not in (0, 1) for flag in flags):
            raise ValueError("found_inf: expected a list of 0 and 1")
        raised = Raised(**record["raised"]) if record.get("raised") else None
        expected = len(flags) if raised is None else raised.step
        if len(scales) != expected:
            raise ValueError(
                f"scale: expected {expected} values, one per update that did not raise"
            )
        is_async = record.get("is_async")
        if is_async is not None and len(is_async) != len(flags):
            raise ValueError(
                f"is_async: expected {len(flags)} flags, found {len(is_async)}"
            )
        return cls(
            record["system"],
            record["params"],
            tuple(bool(flag) for flag in flags),
            tuple(map(parse_scale, scales)),
            record.get("version", ""),
            record.get("sequence", ""),
            None if is_async is None else tuple(is_async),
            raised,
            record.get("notes"),
        )


def read(path: str | os.PathLike[str]) -> Iterator[Trace]:
    """Yield the traces of a file, one by one.

    Args:
        path: A ``.jsonl`` or ``.jsonl.gz`` file.

    Yields:
        Trace: Each trace, in file order.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If a line cannot be read; the traces before it are yielded first.
    """
    file, number, count = Path(path), 0, 0
    for number, record in read_objects(file):
        if number == 1 and "provenance" in record:
            continue
        try:
            trace = Trace.from_record(record)
        except (ValueError, TypeError) as error:
            raise DamagedFileError(
                file, number, str(error), "a trace as a JSON object"
            ) from error
        count += 1
        yield trace
    if not count:
        raise DamagedFileError(
            file, max(number, 1), "the file holds no trace", "at least one"
        )
