"""A part of an experiment's units, and the whole file from its parts: for SLURM arrays and plain shells.

Shard i of n holds every n-th unit from the i-th, in a file beside the whole one: `gpt_fp16.2-of-4.jsonl`.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from ampsim import records
from ampsim.core.files import sole_writer
from ampsim.records import Record
from experiments.runner import earlier
from experiments.runner.experiment import UsageError
from experiments.runner.provenance import IDENTITY

T = TypeVar("T")
USAGE = "pass the files of all shards, e.g. experiments/data/cpu/*-of-4.jsonl"


class Shard(NamedTuple):
    """Part `number`, from 1, of `total`."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what ``2/4`` says."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise UsageError(f"shard={text}: expected I/N, I from 1 to N; pass for example --shard 2/4")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    def beside(self, path: Path) -> Path:
        """Return the shard's file, by the whole one's."""
        return path.with_name(f"{path.stem}.{self.number}-of-{self.total}{path.suffix}")

    def cut(self, units: Sequence[T]) -> Sequence[T]:
        """Return the shard's units."""
        return units[self.number - 1 :: self.total]


class Part(NamedTuple):
    """The file of a shard, read."""

    path: Path
    shard: Shard
    origin: Record
    rows: list[Record]


def merge(names: Sequence[str]) -> list[str]:
    """Write the whole file of each experiment whose shards are named; return a sentence per file.

    Raises:
        UsageError: no file, no shard, one that is missing or there twice, or shards of different runs.
        ampsim.records.DamagedFileError: a shard that cannot be read.
    """
    parts = [_read(Path(name)) for name in names]
    if not parts:
        raise UsageError(f"merge without files: expected the shards of one or more experiments; {USAGE}")
    groups: dict[Path, list[Part]] = {}
    for part in parts:
        whole = re.sub(r"\.\d+-of-\d+(?=\.\w+$)", "", part.path.name)
        groups.setdefault(part.path.with_name(whole), []).append(part)
    for path, group in groups.items():  # before anything is written
        _check(path, group)
    return [_merge(path, sorted(group, key=lambda part: part.shard)) for path, group in groups.items()]


def _read(path: Path) -> Part:
    try:
        origin, rows = records.read(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: expected a file; {USAGE}") from None
    shard = Shard(*origin.get("shard", (0, 0)))
    if not path.name.endswith(f".{shard.number}-of-{shard.total}{path.suffix}"):
        raise UsageError(f"{path}: expected a file that --shard wrote, under its own name; {USAGE}")
    return Part(path, shard, origin, rows)


def _check(path: Path, group: Sequence[Part]) -> None:
    """Refuse parts that do not make one whole."""
    first = group[0]
    for part in group:
        for name in ("script", *IDENTITY):
            if part.origin.get(name) != first.origin.get(name):
                what = records.difference({name: first.origin.get(name)}, {name: part.origin.get(name)})
                raise UsageError(
                    f"{part.path}: not of the same run as {first.path}: {what}; expected one code, one kind of "
                    "machine and the same settings for all shards; run those that differ again"
                )
    totals = sorted({part.shard.total for part in group})
    if len(totals) > 1:
        raise UsageError(f"{path}: shards of {' and of '.join(map(str, totals))}: expected one number; name one run's")
    there, wanted = sorted(part.shard.number for part in group), range(1, totals[0] + 1)
    if missing := [f"{number}/{totals[0]}" for number in wanted if number not in there]:
        raise UsageError(
            f"{path}: {len(there)} of {totals[0]} shards: expected {', '.join(missing)} beside them too; "
            f"run --shard {missing[0]}, or copy its file there"
        )
    if twice := [number for number, after in itertools.pairwise(there) if number == after]:
        raise UsageError(f"{path}: shard {twice[0]} of {totals[0]} is named twice: expected each file once")


def _merge(path: Path, group: Sequence[Part]) -> str:
    turns = itertools.zip_longest(*(part.rows for part in group))
    rows = [row for turn in turns for row in turn if row is not None]
    origin = _origin([part.origin for part in group])
    with sole_writer(path):
        before = earlier.earlier(path, origin["config"], origin["inputs_sha256"])
        written = earlier.write(path, origin, rows, before)
    return f"{path}: {len(rows)} units of {len(group)} shards{'' if written else ', which it held already'}"


def _origin(origins: Sequence[Mapping[str, object]]) -> Record:
    """Return the provenance of the whole, as one machine would have written it."""
    seconds = math.fsum(origin["unit_seconds"] for origin in origins)  # type: ignore[misc]
    date = max(str(origin["date"]) for origin in origins)
    dirty = max((origin["dirty"] for origin in origins), key=(False, None, True).index)  # None: without git
    whole = dict(origins[0]) | {"date": date, "dirty": dirty, "unit_seconds": seconds}
    del whole["shard"]
    return whole
