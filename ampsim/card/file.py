"""The file of a card: JSON Lines, the first says what ran where, then one per probe, the last seals them all.

::

    {"card":1,"identity":{...},"begun":"..."}
    {"probe":"streams","seconds":71.2,...}
    {"sha256":"2c26..."}

The last line holds the sha256 of all bytes before it, so a change of any byte shows. With each probe the file is
written anew and renamed: whoever reads it, or is killed, has it with the probe or without.
"""

import hashlib
from pathlib import Path

from ampsim.core.files import DamagedFileError, write_atomically
from ampsim.records import Record, decode, difference, encode

HEAD = b'{"card":1,"identity":{'


class CardFile:
    """The file of a card; `records` is what an earlier start has left, the first line included.

    Raises ValueError for a file of anything else, or of another run; it stays as it is.
    """

    def __init__(self, path: Path, identity: Record, about: Record) -> None:
        self.path, self.records = path, []
        if not path.exists():
            self.append({"card": 1, "identity": identity, **about})
            return
        if not path.read_bytes().startswith(HEAD):
            raise ValueError(f"{path}: expected a file of `ampsim card`, or none; pass another --out")
        self.records = read(path)
        then, now = self.records[0]["identity"], decode(encode(identity))
        if then != now:
            changed = difference(then, now)
            raise ValueError(f"{path} is of another run: {changed}; expected the same; pass another --out")

    def append(self, record: Record) -> None:
        """Put a record on the disk, with those before it."""
        self.records.append(record)
        body = "".join(f"{encode(each)}\n" for each in self.records).encode()
        write_atomically(self.path, body + seal(body))


def seal(body: bytes) -> bytes:
    """Return the last line of a file."""
    return f"{encode({'sha256': hashlib.sha256(body).hexdigest()})}\n".encode()


def read(path: Path) -> list[Record]:
    """Return the records of a file, the first line included; raise DamagedFileError for one that is not as written."""
    *lines, told = path.read_bytes().splitlines(keepends=True) or [b""]
    body = b"".join(lines)
    if told != seal(body) or not body.startswith(HEAD):
        raise DamagedFileError(path, len(lines) + 1, "its seal is another", "the sha256 of all lines before")
    return [decode(line) for line in body.decode().splitlines()]
