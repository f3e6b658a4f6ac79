"""The reader of data files, used by figures, gallery, claims, paper, and tests.

>>> run = load("gpt_fp16")
>>> run.arm("unscaled").mean("test_loss") > 0
True
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ampsim.core import recorded_runs
from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file

Value = TypeVar("Value")
Array = NDArray[np.float64]
Setting = str | int | float | bool | tuple[float, ...] | None
DATA = Path(__file__).parent.parent / "experiments" / "data"  # one folder per device
CPU = DATA / "cpu"
TRACES = Path(__file__).parent.parent / "tests" / "traces"


@dataclass(frozen=True)
class ArmRecords:
    """The records of one arm, one per seed, in the order of the file."""

    name: str
    records: tuple[Record, ...]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the arm was made of, by field."""
        return self.records[0].get("settings", {})  # type: ignore[no-any-return]

    @property
    def first(self) -> Record:
        """The record of the first seed."""
        return self.records[0]

    def column(self, name: str) -> list[Any]:
        """Return one value per seed."""
        return [record[name] for record in self.records]

    def the(self, name: str) -> Any:
        """Return the value that all seeds have in common.

        Raises:
            ValueError: they differ.
        """
        return common(self.column(name))

    def known(self, name: str) -> int:
        """Return for how many seeds a column is not null."""
        return sum(value is not None for value in self.column(name))

    def numbers(self, name: str) -> Array:
        """Return a column of numbers, or of equally long lists of numbers, (seeds, ...)."""
        return np.array(self.column(name), dtype=np.float64)

    def mean(self, name: str) -> float:
        """Return the mean over seeds of a column of numbers."""
        return fmean(self.column(name))  # correctly rounded, with any numpy

    def min(self, name: str) -> float:
        """Return the lowest value over seeds."""
        return float(np.min(self.column(name)))

    def max(self, name: str) -> float:
        """Return the highest value over seeds."""
        return float(np.max(self.column(name)))

    def scales(self, steps: int | None = None) -> Array:
        """Return the current loss scale at each step, (seeds, steps).

        Args:
            steps: the length of a run; by default that of the recorded loss.
        """
        return np.array(
            [
                in_force(r["scale_changes"], steps or len(r["loss"]))
                for r in self.records
            ]
        )

    def skips(self) -> list[int]:
        """Return how many steps each seed skipped."""
        return [len(record["found_inf"]) for record in self.records]


@dataclass(frozen=True)
class Result:
    """One data file: its provenance, and its records, each of one arm with one seed."""

    stem: str
    path: Path
    provenance: Record
    records: tuple[Record, ...]

    @cached_property
    def arms(self) -> Mapping[str, ArmRecords]:
        """The arms by name, in the order of the file."""
        by_name: dict[str, list[Record]] = {}
        for record in self.records:
            by_name.setdefault(record["arm"], []).append(record)
        return {name: ArmRecords(name, tuple(rows)) for name, rows in by_name.items()}

    def arm(self, name: str) -> ArmRecords:
        """Return the records of one arm.

        Raises:
            KeyError: the file has no such arm; the message lists those it has.
        """
        if name not in self.arms:
            raise KeyError(
                f"{self.path}: arm {name!r}: expected one of {', '.join(self.arms)}"
            )
        return self.arms[name]

    def where(self, **settings: Setting) -> tuple[ArmRecords, ...]:
        """Return the arms that have all of these settings, in the order of the file."""
        wanted = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in settings.items()
        }
        return tuple(
            arm
            for arm in self.arms.values()
            if all(
                name in arm.settings and arm.settings[name] == value
                for name, value in wanted.items()
            )
        )

    def one(self, **settings: Setting) -> ArmRecords:
        """Return the only arm that has all of these settings.

        Raises:
            KeyError: none has, or more than one.
        """
        found = self.where(**settings)
        if len(found) != 1:
            raise KeyError(
                f"{self.path}: {settings}: expected one arm, {len(found)} have these settings"
            )
        return found[0]

    @property
    def config(self) -> Mapping[str, Any]:
        """The experiment's settings, by field."""
        return self.provenance["config"]  # type: ignore[no-any-return]

    @property
    def steps(self) -> int:
        """The length of a run."""
        return int(self.config["steps"])

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that each arm was run with."""
        return tuple(self.provenance["seeds"])

    @property
    def device(self) -> str:
        """The name of the processor or card."""
        return str(self.provenance["device"]["name"])


def common(values: Iterable[Value]) -> Value:
    """Return the value that all have in common.

    Raises:
        ValueError: they differ.
    """
    first, *others = values
    if any(other != first for other in others):
        raise ValueError(f"expected one value, found {[first, *others]!s:.200}")
    return first


def load(stem: str, *folders: Path) -> Result:
    """Read the data file of an experiment, from the first of the folders that has it; from the
    CPU's if none is named.

    "traces" are recorded traces of third-party scalers, the same for every folder.

    Raises:
        FileNotFoundError: The file does not exist; the message names the command that creates it.
        ampsim.core.files.DamagedFileError: it cannot be read as written.
    """
    if stem == "traces":
        return traces()
    paths = [folder / f"{stem}.jsonl" for folder in folders or (CPU,)]
    for path in paths:
        if path.exists():
            return read(path, stem)
    raise FileNotFoundError(
        f"{paths[0]}: no such file; run `python -m experiments.{stem}` to create it"
    )


@cache
def traces(folder: Path = TRACES) -> Result:
    """Return the traces recorded from other frameworks' scalers, each with whether the reference
    machine repeats it.

    Raises:
        FileNotFoundError: there are none.
    """
    found = tuple(
        {
            "system": t.system,
            "sequence": t.sequence,
            "updates": len(t.found_inf),
            "repeated": t.is_repeated(),
        }
        for t in recorded_runs.read(folder / "recorded.jsonl.gz")
    )
    origin: Record = {
        "script": "tests/core/test_recorded_runs.py",
        "device": {"name": "any"},
        "seeds": [],
        "commit": None,
    }
    return Result("traces", folder, origin, found)


def read(path: Path, *stems: str) -> Result:
    """Read a data file of one of these experiments, wherever it lies.

    Raises:
        OSError: it cannot be opened.
        ValueError: it cannot be read as written, or is another experiment's.
    """
    now = path.stat()
    provenance, rows = _records(path, now.st_mtime_ns, now.st_size)
    made = Path(provenance.get("script", "")).stem
    if made not in stems:
        raise ValueError(
            f"{path}: made by {made or 'nothing'}; expected data of {' or '.join(stems) or 'nothing'}"
        )
    return Result(made, path, provenance, rows)


@cache  # the paper and its claims read the same files hundreds of times
def _records(path: Path, changed: int, size: int) -> tuple[Record, tuple[Record, ...]]:
    provenance, rows = data_file.read(path)
    return provenance, tuple(rows)


def processors(root: Path = DATA) -> list[Path]:
    """Return the folders of all processors with committed data: first the one that the text
    describes.
    """
    return [root / "cpu", *sorted(path for path in root.glob("cpu-*") if path.is_dir())]


def in_force(changes: Sequence[Sequence[float]], steps: int) -> Array:
    """Return the value at each step, (steps,), from the pairs (step, value) at which it changes."""
    starts, values = zip(*changes, strict=True)
    return np.repeat(
        np.array(values, dtype=np.float64),
        np.diff([*(int(start) for start in starts), steps]),
    )


def log2(scales: Array, zero: float) -> Array:
    """Return log2 of scales, and `zero` for a scale of 0."""
    return np.log2(scales, out=np.full_like(scales, zero), where=scales > 0)
