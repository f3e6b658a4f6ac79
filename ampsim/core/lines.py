"""Lines of a text file from outside: decompressed, decoded, and in bounded memory."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import IO, BinaryIO, cast

from ampsim.core.files import DamagedFileError

LONGEST = 1 << 20
"""Default limit on the characters of a line."""

_GZIP = b"\x1f\x8b"
# Their decoders need as much memory as the file demands, or are not in the standard library.
_OTHERS = {
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}
_UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE  # PowerShell writes such logs
_TORN = EOFError, zlib.error, gzip.BadGzipFile, OSError


class Lines:
    r"""Lines of a text file, each with its line end: a line feed, a carriage return, or both.

    Text is UTF-8, or UTF-16 with a byte order mark; gzip is decompressed. Memory does not depend on
    the size of the file, before or after decompression.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "train.log")
    >>> path.write_text("step 1\nstep 2")
    13
    >>> list(Lines(path))
    ['step 1\n', 'step 2']

    Args:
        path: File to read.
        longest: Limit on the characters of a line; at least 2.
        strict: True for data, where a line that is too long, a byte that is not UTF-8, or a
            truncated archive raises. False for logs: a long line is yielded in parts, bad bytes
            become U+FFFD, and `damage` tells why reading stopped.

    Attributes:
        number: Number of lines yielded so far; parts of a long line count.
        damage: Why the rest of the file was not read; "" if all was read.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        longest: int = LONGEST,
        strict: bool = False,
    ) -> None:
        self.path = Path(path)
        self.number = 0
        self.damage = ""
        self._longest = longest
        self._strict = strict

    def __iter__(self) -> Iterator[str]:
        """Yield the lines.

        Raises:
            FileNotFoundError: If there is no such file.
            OSError: If the file cannot be opened.
            DamagedFileError: If the file is an archive of another kind; if strict, also if it is
                damaged.
        """
        with self.path.open("rb") as file:
            try:
                text = self._decoded(file)
                for line in (
                    self._whole_lines(text) if self._strict else self._parts(text)
                ):
                    self.number += 1
                    yield line
            except _TORN as error:
                self.damage = f"truncated or damaged ({error})"
                if self._strict:
                    raise self._damaged(self.damage, "a complete file") from error

    def _damaged(self, found: str, expected: str) -> DamagedFileError:
        return DamagedFileError(self.path, self.number + 1, found, expected)

    def _decoded(self, file: IO[bytes], layers: int = 2) -> io.TextIOWrapper:
        start = file.read(6)
        file.seek(0)
        for magic, name in _OTHERS.items():
            if start.startswith(magic):
                raise self._damaged(
                    f"compressed by {name}", "text, or text compressed by gzip"
                )
        if start.startswith(_GZIP) and layers:  # perhaps twice, e.g. by a web server
            return self._decoded(cast("IO[bytes]", gzip.open(file)), layers - 1)
        encoding = "utf-16" if start.startswith(_UTF16) else "utf-8-sig"
        # The decoder is ahead of the lines, so `_whole_lines` checks each line by itself.
        errors = "surrogateescape" if self._strict else "replace"
        return io.TextIOWrapper(cast("BinaryIO", file), encoding, errors, newline="")

    def _whole_lines(self, text: io.TextIOWrapper) -> Iterator[str]:
        while line := text.readline(self._longest):
            if len(line) == self._longest and not line.endswith(("\n", "\r")):
                raise self._damaged(
                    f"a line of over {self._longest:,} characters", "shorter lines"
                )
            if not line.isascii():
                self._check_encoding(line)
            yield line

    def _check_encoding(self, line: str) -> None:
        try:
            line.encode()
        except UnicodeEncodeError as error:
            byte = ord(line[error.start]) - 0xDC00
            raise self._damaged(
                f"the byte 0x{byte:02x} is not UTF-8", "UTF-8 text"
            ) from None

    def _parts(self, text: io.TextIOWrapper) -> Iterator[str]:
        """Yield the lines; the parts of a long one end at a space or a comma, where no number is
        cut.
        """
        rest = ""
        while line := text.readline(self._longest):
            line = rest + line
            rest = ""
            if len(line) >= self._longest and not line.endswith(("\n", "\r")):
                end = max(line.rfind(" "), line.rfind(",")) + 1 or len(line)
                line, rest = line[:end], line[end:]
            yield line
        if rest:
            yield rest
