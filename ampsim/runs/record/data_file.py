"""The data file of an experiment: JSON Lines, provenance first, then one record per unit of work.

::

    {"provenance": {...}, "records": N}
    {...}                                 N times

A file is replaced as a whole, so a reader finds all of the old content or all of the new. N shows
whether a file was cut at the end of a line. `ampsim.core.json_lines` defines how inf and NaN are
written.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ampsim.core.files import DamagedFileError, write_atomically
from ampsim.core.json_lines import AnyPath, Record, encode, read_objects


def write(
    path: AnyPath,
    provenance: Mapping[str, object],
    records: Iterable[Mapping[str, object]],
) -> None:
    """Write a data file atomically.

    Args:
        path: File to write or replace; missing folders are created.
        provenance: JSON data for the first line.
        records: JSON data, one dict per line.

    Raises:
        OSError: If the file cannot be written; the old content stays.
        TypeError: If JSON does not support the type of a value.
        ValueError: If a text reads as inf or NaN.
    """
    lines = [encode(record) for record in records]
    header = encode({"provenance": dict(provenance), "records": len(lines)})
    write_atomically(
        Path(path), "".join(f"{line}\n" for line in [header, *lines]).encode()
    )


def read(path: AnyPath) -> tuple[Record, list[Record]]:
    """Return the provenance and the records of a data file.

    Args:
        path: Data file, plain or compressed by gzip.

    Returns:
        tuple[dict, list[dict]]: The provenance, and the records in file order.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If the file is truncated, has no provenance, or is not JSON Lines.
    """
    path = Path(path)
    lines = read_objects(path)
    provenance, count = _header(path, next(lines, (1, {}))[1])
    records = [record for _, record in lines]
    if len(records) != count:
        found = f"the file has {len(records)} records"
        raise DamagedFileError(
            path, len(records) + 1, found, f"{count}, as the first line says"
        )
    return provenance, records


def read_provenance(path: AnyPath) -> Record:
    """Return the provenance of a data file; reads only the first line.

    Args:
        path: Data file, plain or compressed by gzip.

    Returns:
        dict: The provenance.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If the first line is not the header of a data file.
    """
    _, header = next(read_objects(path), (1, {}))
    return _header(Path(path), header)[0]


def _header(path: Path, header: Record) -> tuple[Record, int]:
    provenance, count = header.get("provenance"), header.get("records")
    if not isinstance(provenance, dict) or type(count) is not int:
        found = f"the first record has the keys {sorted(header)}"
        raise DamagedFileError(
            path, 1, found, 'a first record {"provenance": {...}, "records": N}'
        )
    return provenance, count
