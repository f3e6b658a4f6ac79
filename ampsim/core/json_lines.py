"""JSON Lines with exact floats: the form of every data file of the project.

JSON has no inf and no NaN. They are written as the strings ``"inf"``, ``"-inf"``, and ``"nan"``,
and read back as floats. Text that reads the same raises an error when it is written, so nothing is
ambiguous. All other floats are written with the shortest digits that give back the same bits.
Reading executes nothing.
"""

import json
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ampsim.core.files import DamagedFileError
from ampsim.core.lines import Lines

Record = dict[str, Any]
AnyPath = str | PathLike[str]

LONGEST = 1 << 23
"""Limit on the characters of a line. A longer one raises an error, as it would need over 100 MB of memory."""

_NONFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_OBJECT = "one JSON object per line"


def encode(value: object) -> str:
    """Return a value as one line of strict JSON.

    Args:
        value: Dict with str keys, list, tuple, numpy array or scalar, str, number, bool, or None.

    Returns:
        str: JSON without a line end. Tuples and arrays become lists.

    Raises:
        TypeError: If JSON does not support a value or a key.
        ValueError: If a text is "inf", "-inf", or "nan", which would be read back as a float.
    """
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def decode(line: str) -> Any:
    """Return the value of `encode`.

    Args:
        line: One line of JSON. Python's constants ``Infinity`` and ``NaN`` are read, too.

    Returns:
        The value; lists in place of tuples and arrays.

    Raises:
        ValueError: If the line is not JSON, or is nested too deeply.
    """
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # Most lines hold finite numbers only, and need no second pass.
    return _revive(value) if any(f'"{name}"' in line for name in _NONFINITE) else value


def decode_object(path: Path, number: int, line: str) -> Record:
    """Return the JSON object on a line of a file.

    Raises:
        DamagedFileError: If the line is not a JSON object.
    """
    try:
        value = decode(line)
    except ValueError as error:
        raise DamagedFileError(path, number, f"not JSON ({error})", _OBJECT) from error
    if not isinstance(value, dict):
        raise DamagedFileError(path, number, f"a JSON {type(value).__name__}", _OBJECT)
    return value


def read_objects(path: AnyPath) -> Iterator[tuple[int, Record]]:
    """Yield the JSON objects of a file, one by one, each with its line number.

    Args:
        path: JSON Lines file, plain or compressed by gzip.

    Yields:
        tuple[int, dict]: The line number, from 1, and the object.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If a line is not a JSON object; the objects before it are yielded first.
    """
    lines = Lines(path, longest=LONGEST, strict=True)
    for line in lines:
        yield lines.number, decode_object(lines.path, lines.number, line)


def _plain(value: object) -> object:
    """Return a value with only what strict JSON supports."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        if value in _NONFINITE:
            raise ValueError(
                f"text {value!r}: expected text that does not read as a number; "
                "it would be read back as a float"
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
            f"key {key!r} of type {type(key).__name__}: expected str; "
            "JSON would turn the key into text"
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
