"""The file of a card: JSON Lines, the first says what ran where, then one per probe, each sealed with all before it.

Theory of operation
-------------------
::

    {"card":1,"identity":{...},"begun":"...","digest":"2c26..."}
    {"probe":"streams","seconds":71.2,...,"digest":"fcde..."}

A digest is the sha256 of the digest before, as text, and of the line without its own. So every byte stands under a
digest, and a line that is changed, taken out or moved shows. A line is on the disk before `append` returns; a kill can
tear the last one only, which is dropped by the next start and refused by `read`.
"""

import hashlib
import os
from pathlib import Path

from ampsim.core.files import DamagedFileError
from ampsim.records import Record, decode, difference, encode

MARK, END = b',"digest":"', b'"}'
HEAD = b'{"card":1,"identity":{'


class CardFile:
    """The file of a card, open for appending; `records` is what an earlier start has left, the first line included.

    Raises ValueError for a file of anything else, or of another run; it stays as it is.
    """

    def __init__(self, path: Path, identity: Record, about: Record) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        if not data.startswith(HEAD[: len(data)]):
            raise ValueError(f"{path}: expected a file of `ampsim card`, or none; pass another --out")
        whole = data.rpartition(b"\n")[0]
        self.records, self.digest = opened(path, whole) if whole else ([], b"")
        if self.records and self.records[0]["identity"] != decode(encode(identity)):
            changed = difference(self.records[0]["identity"], identity)
            raise ValueError(f"{path} is of another run: {changed}; expected the same; pass another --out")
        with path.open("ab") as file:
            file.truncate(len(whole) + bool(whole))
        if not self.records:
            self.append({"card": 1, "identity": identity, **about})

    def append(self, record: Record) -> None:
        """Put a record on the disk, sealed."""
        body = encode(record).encode()[:-1]
        self.digest = seal(self.digest, body)
        with self.path.open("ab") as file:
            file.write(body + MARK + self.digest + END + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)


def seal(before: bytes, body: bytes) -> bytes:
    """Return the digest of a line's body, without its last brace, behind the digest before."""
    return hashlib.sha256(before + body).hexdigest().encode()


def read(path: Path) -> list[Record]:
    """Return the records of a file, the first line included; raise DamagedFileError for one that is not as written."""
    data = path.read_bytes()
    whole, feed, torn = data.rpartition(b"\n")
    if torn or not feed:
        lines = data.count(b"\n") + 1
        raise DamagedFileError(path, lines, "it is cut short", "a line feed; the command that made it goes on")
    return opened(path, whole)[0]


def opened(path: Path, whole: bytes) -> tuple[list[Record], bytes]:
    """Return the records of whole lines, and the last digest."""
    records, digest = [], b""
    for number, line in enumerate(whole.split(b"\n"), start=1):
        body, _, told = line.rpartition(MARK)
        digest = seal(digest, body)
        if told != digest + END or not (body.startswith(HEAD) if number == 1 else body):
            raise DamagedFileError(path, number, "its digest is another", "the sha256 of this line and those before")
        records.append(decode((body + b"}").decode()))
    return records, digest
