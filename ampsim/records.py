"""The one form of a data file: JSON Lines, provenance first, then one record per unit of work.

Theory of operation
-------------------
A *finished file* is ::

    {"provenance": {...}, "records": N}
    {...}                                 N times

It is written to a temporary name in the same folder, flushed to the disk and renamed, so that whoever
reads it sees all of it or nothing; N makes a file that was cut at a line's end visible as well.

A *journal* (`<name>.<digits>.part`) holds what a run that is not over has finished: a header with the run's
identity, then one line per unit, each on the disk before `Journal.append` returns. A kill can only tear the last
line; the next run drops it, keeps the units before it and does the others. The digits are the identity's sha256, so
runs of other settings have journals of their own: none is mixed in, and none is lost (`Journal.others` names them).

JSON has no inf and no nan. They are written as the strings ``"inf"``, ``"-inf"`` and ``"nan"`` and come back
as floats; text that reads the same is refused when written, so nothing is ambiguous. All other floats are
written with the shortest digits that give back the same bits. Tuples and numpy arrays are written as lists.
Reading executes nothing.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ampsim.core.files import DamagedFileError, append, write_atomically

__all__ = [
    "DamagedFileError", "Journal", "Record", "decode", "difference", "encode", "read", "read_provenance", "write",
]  # fmt: skip

Record = dict[str, Any]
AnyPath = str | os.PathLike[str]

_NONFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode(value: object) -> str:
    """Return one line of strict JSON for `value` (dicts with str keys, lists, arrays, str, numbers, bool, None).

    Raises:
        ValueError: text "inf", "-inf" or "nan" (it would come back as a float).
        TypeError: a value or key that JSON has no place for.
    """
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def decode(line: str) -> Any:
    """Return the value that `encode` wrote.

    Raises:
        ValueError: not strict JSON.
    """
    value = json.loads(line, parse_constant=_refuse_constant)
    # Most lines are long lists of finite numbers: walk them only when there is something to turn back.
    return _revive(value) if any(f'"{name}"' in line for name in _NONFINITE) else value


def difference(old: object, new: object) -> str:
    """Return the first place where two values differ, in words: ``old then, new now``."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                inner = difference(old.get(key), new.get(key))
                return f"{key}.{inner}" if isinstance(new.get(key), dict) else f"{key}: {inner}"
    return f"{encode(old)} then, {encode(new)} now"


def write(
    path: AnyPath, provenance: Mapping[str, object], records: Iterable[Mapping[str, object]]
) -> None:
    """Write a finished file; at any moment `path` holds all of the old content or all of the new."""
    lines = [encode(record) for record in records]
    header = encode({"provenance": dict(provenance), "records": len(lines)})
    text = "".join(f"{line}\n" for line in [header, *lines])
    write_atomically(Path(path), text.encode())


def read(path: AnyPath) -> tuple[Record, list[Record]]:
    """Return the provenance and the records of a finished file.

    Raises:
        FileNotFoundError: no such file.
        DamagedFileError: cut short, not JSON, or without provenance.
    """
    path = Path(path)
    lines = _lines(path)
    if lines[-1]:
        raise DamagedFileError(
            path, len(lines), "the last line is cut short", "a line feed at the end of the file"
        )
    provenance, count = _header(path, lines[0])
    records = [_parse(path, number, line) for number, line in enumerate(lines[1:-1], start=2)]
    if len(records) != count:
        found = f"{len(records)} records stand in the file"
        raise DamagedFileError(path, len(lines), found, f"{count} records as the first line says")
    return provenance, records


def read_provenance(path: AnyPath) -> Record:
    """Return the provenance alone: the first line is read, the rest is left unread."""
    path = Path(path)
    with path.open("rb") as file:
        return _header(path, file.readline().removesuffix(b"\n"))[0]


class Journal:
    """The finished units of a run that is not over, kept in `part` beside `path` until `finish` writes `path`.

    `done` maps each finished unit to its value, as JSON gives it back. `identity` is whatever two runs must share for
    their units to be mixed.
    """

    def __init__(self, path: Path, identity: Mapping[str, object]) -> None:
        header = encode({"journal": path.name, "identity": dict(identity)})
        digits = hashlib.sha256(header.encode()).hexdigest()[:12]
        self.path = path
        self.part = path.with_name(f"{path.name}.{digits}.part")
        self.done: dict[str, Any] = {}
        self._identity = decode(header)["identity"]
        if not self._resume():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.part.write_bytes(f"{header}\n".encode())

    def others(self) -> dict[Path, str]:
        """Return the journals of other runs bound for `path`, each with the first place where the two runs differ."""
        found = {}
        for part in sorted(
            set(self.path.parent.glob(f"{glob.escape(self.path.name)}.*part")) - {self.part}
        ):
            with contextlib.suppress(DamagedFileError):  # killed while the header was written
                found[part] = difference(
                    _parse(part, 1, _lines(part)[0]).get("identity"), self._identity
                )
        return found

    def append(self, unit: str, value: Mapping[str, object]) -> None:
        """Keep one finished unit: on the disk when this returns."""
        line = encode({"unit": unit, "value": dict(value)})
        handle = os.open(self.part, os.O_WRONLY | os.O_APPEND)
        try:
            append(handle, f"{line}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        self.done[unit] = decode(line)["value"]

    def finish(
        self, provenance: Mapping[str, object], records: Iterable[Mapping[str, object]]
    ) -> None:
        """Write the finished file and remove the journal; a kill between the two leaves both, both whole."""
        write(self.path, provenance, records)
        self.part.unlink(missing_ok=True)

    def _resume(self) -> bool:
        """Take over what an earlier run left; False when there is nothing to take over."""
        *whole, torn = _lines(self.part) if self.part.exists() else [b""]
        if not whole:
            return False  # there is none, or the run was killed while the header was written
        for number, line in enumerate(whole[1:], start=2):
            entry = _parse(self.part, number, line)
            unit, value = entry.get("unit"), entry.get("value")
            if not (isinstance(unit, str) and isinstance(value, dict)):
                found = f"a unit {unit!r} with a value of type {type(value).__name__}"
                raise DamagedFileError(
                    self.part, number, found, "text as unit and an object as value"
                )
            self.done[unit] = value
        os.truncate(self.part, self.part.stat().st_size - len(torn))
        return True


def _lines(path: Path) -> list[bytes]:
    """Return the file split at line feeds; the last item follows the last of them and is empty unless torn."""
    return path.read_bytes().split(b"\n")


def _header(path: Path, line: bytes) -> tuple[Record, int]:
    header = _parse(path, 1, line)
    if not isinstance(header.get("provenance"), dict) or type(header.get("records")) is not int:
        found = f"the first record has the keys {sorted(header)}"
        raise DamagedFileError(path, 1, found, 'a first record {"provenance": {...}, "records": N}')
    return header["provenance"], header["records"]


def _parse(path: Path, number: int, line: bytes) -> Record:
    try:
        value = decode(line.decode("utf-8"))
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are among them
        raise DamagedFileError(
            path, number, f"not JSON ({error})", "one JSON object per line"
        ) from error
    except RecursionError as error:
        raise DamagedFileError(
            path, number, "nested too deep", "one JSON object per line"
        ) from error
    if not isinstance(value, dict):
        raise DamagedFileError(
            path, number, f"a JSON {type(value).__name__}", "one JSON object per line"
        )
    return value


def _plain(value: object) -> object:
    """Return `value` with only what strict JSON knows."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        if value in _NONFINITE:
            raise ValueError(
                f"text {value!r}: expected text that does not read as a number; it would come back as a float"
            )
        return value
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(
            f"key {key!r} of type {type(key).__name__}: expected str; JSON would turn it into text silently"
        )
    return key


def _revive(value: Any) -> Any:
    """Undo `_plain`: the three strings become floats."""
    if isinstance(value, str):
        return _NONFINITE.get(value, value)
    if isinstance(value, list):
        return [_revive(item) for item in value]
    if isinstance(value, dict):
        return {key: _revive(item) for key, item in value.items()}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is not JSON: expected the text "inf", "-inf" or "nan"')
