"""The finished units of an experiment that is still running, so that a killed run continues.

A journal (`<name>.<digits>.part`) has a header with the identity of the run, then one line per
unit. Each line is on the disk before `Journal.append` returns. A kill can only truncate the last
line; the next run drops that line, keeps the units before it, and computes the others. The digits
are the sha256 of the identity, so runs with other settings, or of another version of the library,
have other journals: no units are mixed, and none are lost.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampsim.core.files import DamagedFileError, append
from ampsim.core.json_lines import decode, decode_object, encode


class Journal:
    """The finished units of a run that is not over, kept in `part` beside the data file.

    Args:
        path: Data file that the run is going to write.
        identity: What two runs must share for their units to be mixed.

    Attributes:
        part: File of the journal.
        done: Value of each finished unit, as read back from JSON.
    """

    def __init__(self, path: Path, identity: Mapping[str, object]) -> None:
        header = encode({"journal": path.name, "identity": dict(identity)})
        digits = hashlib.sha256(header.encode()).hexdigest()[:12]
        self.part = path.with_name(f"{path.name}.{digits}.part")
        self.done: dict[str, Any] = {}
        if not self._resume():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.part.write_bytes(f"{header}\n".encode())

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

    def _resume(self) -> bool:
        """Take over the units of an earlier run; return False if there is none."""
        # The last item is empty unless the last line was cut.
        text = self.part.read_bytes() if self.part.exists() else b""
        *whole, torn = text.split(b"\n")
        if not whole:
            return False  # no journal, or one whose header was cut
        for number, line in enumerate(whole[1:], start=2):
            entry = decode_object(self.part, number, line.decode(errors="replace"))
            unit, value = entry.get("unit"), entry.get("value")
            if not (isinstance(unit, str) and isinstance(value, dict)):
                found = f"a unit {unit!r} with a value of type {type(value).__name__}"
                raise DamagedFileError(
                    self.part, number, found, "text as unit and an object as value"
                )
            self.done[unit] = value
        os.truncate(self.part, self.part.stat().st_size - len(torn))
        return True
