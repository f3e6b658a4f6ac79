"""A trace: what some scaler was told and what it did, and the file that holds many of them.

The file is JSON Lines, optionally gzipped (``.gz``), one trace per line, so that scalers in any language can
write and check it. A first line ``{"provenance": {...}}`` is allowed. Scales are hexadecimal floats
(``float.hex``), so that no bit is lost in print; ``inf`` is written as such. Nothing is executed on load.
"""

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ampsim.core import dialects
from ampsim.core.files import DamagedFileError, write_atomically
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import first_divergence, states

# Runs are recorded once and not rewritten: how parameters were called then -> how dialects call them.
RECORDED = {
    "init": "init_scale",
    "growth": "growth_factor",
    "backoff": "backoff_factor",
    "interval": "growth_interval",
}


def today(system: str, params: Mapping[str, object]) -> dict[str, object]:
    """Return recorded parameters of a dialect under the names that it has today."""
    dialect = dialects.ALL.get(system)
    own = {*dialect.parameters, *dialect.options} if dialect else set()
    return {name if name in own else RECORDED.get(name, name): params[name] for name in params}


@dataclass(frozen=True)
class Raised:
    """The scaler gave up: at which update (from 0), with which exception.

    Attributes:
        step: the update, from 0.
        type: name of the exception.
        msg: its text.
    """

    step: int
    type: str
    msg: str


@dataclass(frozen=True)
class Trace:
    """One run of one scaler.

    Attributes:
        system: a name that `dialects.get` knows.
        params: under the framework's own names.
        found_inf: one flag per update.
        scale: after each update; none for the update that raised.
        version: of the framework.
        sequence: the scenario's name.
        is_async: RoundPipe: whether the update was delayed.
        raised: how the scaler gave up, if it did.
        notes: anything else; not compared.
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
        """Return the rule this trace should follow."""
        return dialects.get(self.system, **today(self.system, self.params))

    def mismatch(self) -> str | None:
        """Return None if the reference machine does the same to the last bit, else what differs first.

        Raises KeyError, TypeError or ValueError (see `dialects.get`) if no dialect fits.
        """
        if not self.found_inf:
            return "no updates: expected at least one; record some, or leave the trace out"
        rule, step, error = self.rule(), -1, None
        try:
            for step, state in enumerate(states(rule, self.found_inf, is_async=self.is_async)):
                if step == len(self.scale):
                    return f"update {step}: expected {self._ending()}, the machine went on to {state.scale!r}"
                if first_divergence([state.scale], [self.scale[step]]) is not None:
                    return f"update {step}: expected {self.scale[step]!r}, the machine says {state.scale!r}"
        except Exception as raised:
            error = raised
            step += 1
        seen = None if error is None else Raised(step, type(error).__name__, str(error))
        if seen == self.raised:
            return None
        return f"update {step}: expected {self._ending()}, the machine raised {seen}"

    def _ending(self) -> str:
        return f"{self.raised.type} at update {self.raised.step}" if self.raised else "no exception"

    def to_record(self) -> dict[str, object]:
        """Return this trace as a JSON object."""
        record: dict[str, object] = {
            "system": self.system,
            "version": self.version,
            "params": dict(self.params),
            "sequence": self.sequence,
            "found_inf": [int(flag) for flag in self.found_inf],
            "scale": ["inf" if math.isinf(s) else s.hex() for s in self.scale],
        }
        if self.is_async is not None:
            record["is_async"] = list(self.is_async)
        if self.raised is not None:
            record["raised"] = vars(self.raised)
        if self.notes is not None:
            record["notes"] = self.notes
        return record

    @classmethod
    def from_record(cls, record: object) -> "Trace":
        """Return the trace in a JSON object; a ValueError says what is wrong with it."""
        if not isinstance(record, dict):
            raise ValueError(f"expected a JSON object, found {type(record).__name__}")
        missing = {"system", "params", "found_inf", "scale"} - record.keys()
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} missing")
        if not isinstance(record["system"], str):
            raise ValueError(
                f"system {record['system']!r}: expected the name of a dialect, see `ampsim dialects`"
            )
        flags, scales = record["found_inf"], record["scale"]
        if not isinstance(flags, list) or any(flag not in (0, 1) for flag in flags):
            raise ValueError("found_inf: expected a list of 0 and 1")
        raised = Raised(**record["raised"]) if record.get("raised") else None
        expected = len(flags) if raised is None else raised.step
        if not isinstance(scales, list) or len(scales) != expected:
            raise ValueError(
                f"scale: expected {expected} values, one per update that did not raise"
            )
        is_async = record.get("is_async")
        if is_async is not None and len(is_async) != len(flags):
            raise ValueError(f"is_async: expected {len(flags)} flags, found {len(is_async)}")
        if not isinstance(record["params"], dict):
            raise ValueError("params: expected a JSON object")
        return cls(
            record["system"],
            record["params"],
            tuple(bool(flag) for flag in flags),
            tuple(map(_scale, scales)),
            record.get("version", ""),
            record.get("sequence", ""),
            None if is_async is None else tuple(is_async),
            raised,
            record.get("notes"),
        )


def _scale(text: object) -> float:
    if not isinstance(text, str):
        raise ValueError(
            f"scale {text!r}: expected a hexadecimal float such as '0x1.0000000000000p+16'"
        )
    return float.fromhex(text)  # reads 'inf' and 'nan' too


def read(path: str | os.PathLike[str]) -> Iterator[Trace]:
    """Yield the traces of a file, one by one.

    Raises:
        FileNotFoundError: no such file.
        DamagedFileError: at the line that cannot be read; the traces before it have been yielded.
    """
    file, number, seen = Path(path), 0, 0
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                record = json.loads(line.decode())
                if not (number == 1 and isinstance(record, dict) and "provenance" in record):
                    seen += 1
                    yield Trace.from_record(record)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFileError(
            file, number + 1, f"cut off or damaged ({error})", "a whole file"
        ) from error
    except RecursionError as error:
        raise DamagedFileError(
            file, number, "nested too deep", "a trace as a JSON object"
        ) from error
    except (ValueError, TypeError) as error:
        raise DamagedFileError(file, number, str(error), "a trace as a JSON object") from error
    if not seen:
        raise DamagedFileError(file, max(number, 1), "the file holds no trace", "at least one")


def write(
    path: str | os.PathLike[str],
    traces: Iterable[Trace],
    provenance: Mapping[str, object] | None = None,
) -> None:
    """Write a trace file: to a temporary name beside it, then renamed, so that no half file is ever seen.

    The same traces give the same bytes, gzipped or not.
    """
    file = Path(path)
    records: list[object] = [{"provenance": dict(provenance)}] if provenance else []
    records += [trace.to_record() for trace in traces]
    data = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
    write_atomically(file, gzip.compress(data, mtime=0) if file.suffix == ".gz" else data)
