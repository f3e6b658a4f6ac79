"""What a data file says. This is the only reader of data files: figures, gallery, claims, paper and tests ask it.

>>> run = load("gpt_fp16")
>>> run.arm("unscaled").mean("test_loss") > 0
True
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampsim import records
from ampsim.records import Record

Array = NDArray[np.float64]
DATA = Path(__file__).parent.parent / "experiments" / "data"  # one folder per device
CPU = DATA / "cpu"


@dataclass(frozen=True)
class ArmRecords:
    """The records of one arm, one per seed, in the order of the file."""

    name: str
    records: tuple[Record, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the arm was made of, by field."""
        return self.records[0].get("settings", {})  # type: ignore[no-any-return]

    def column(self, name: str) -> list[Any]:
        """Return one value per seed."""
        return [record[name] for record in self.records]

    def mean(self, name: str) -> float:
        """Return the mean over seeds of a column of numbers."""
        return float(np.mean(self.column(name)))

    def min(self, name: str) -> float:
        """Return the lowest value over seeds."""
        return float(np.min(self.column(name)))

    def max(self, name: str) -> float:
        """Return the highest value over seeds."""
        return float(np.max(self.column(name)))


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
        names = dict.fromkeys(record["arm"] for record in self.records)
        return {name: ArmRecords(name, tuple(r for r in self.records if r["arm"] == name)) for name in names}

    def arm(self, name: str) -> ArmRecords:
        """Return the records of one arm.

        Raises:
            KeyError: the file has no such arm; the message lists those it has.
        """
        if name not in self.arms:
            raise KeyError(f"{self.path}: arm {name!r}: expected one of {', '.join(self.arms)}")
        return self.arms[name]

    @property
    def config(self) -> Mapping[str, Any]:
        """The experiment's settings, by field."""
        return self.provenance["config"]  # type: ignore[no-any-return]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that each arm was run with."""
        return tuple(self.provenance["seeds"])

    @property
    def device(self) -> str:
        """The name of the processor or card."""
        return str(self.provenance["device"]["name"])


def load(stem: str, folder: Path = CPU) -> Result:
    """Read the data file of an experiment.

    Raises:
        FileNotFoundError: no such file; the message says which command makes it.
        ampsim.records.DamagedFileError: it cannot be read as written.
    """
    path = folder / f"{stem}.jsonl"
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; `python -m experiments.{stem}` makes it")
    provenance, rows = records.read(path)
    return Result(stem, path, provenance, tuple(rows))


def of_arm(records: Sequence[Record], arm: str) -> list[Record]:
    """The units of one arm, one a seed."""
    return [record for record in records if record["arm"] == arm]


def arms(records: Sequence[Record]) -> list[str]:
    """In the order of the file."""
    return list(dict.fromkeys(record["arm"] for record in records))


def scale(record: Record) -> Array:
    """The loss scale in force at each step, (steps,)."""
    steps = len(record["loss"])
    starts = [step for step, _ in record["scale_changes"]]
    lengths = np.diff([*starts, steps])
    return np.repeat([value for _, value in record["scale_changes"]], lengths).astype(np.float64)


def losses(records: Sequence[Record], block: int) -> Array:
    """Training loss averaged over blocks of `block` steps, (seeds, blocks); a last, shorter block is left out."""
    loss = np.array([record["loss"] for record in records], dtype=np.float64)
    whole = loss.shape[1] // block * block
    return np.asarray(loss[:, :whole].reshape(len(records), -1, block).mean(axis=2))


def regular(record: Record, every: int) -> NDArray[np.bool_]:
    """Which of `counted_steps` were counted by the clock and not because the step was skipped.

    A mean over time must not use the others, or skipped steps would weigh more.
    """
    return np.asarray(np.array(record["counted_steps"]) % every == 0)


def shares(record: Record, layer: int | None = None) -> dict[str, Array]:
    """Share of zero, subnormal, normal and overflowed elements per counted step, (counted,) each."""
    elements = np.array(record["elements"], dtype=np.float64)
    pick = slice(None) if layer is None else [layer]
    total = elements[pick].sum()
    parts = {name: np.array(record[name])[:, pick].sum(axis=1) / total for name in ("zero", "subnormal", "overflow")}
    return {**parts, "normal": 1.0 - parts["zero"] - parts["subnormal"] - parts["overflow"]}


def mean_shares(records: Sequence[Record], every: int, block: int) -> tuple[Array, dict[str, Array]]:
    """Shares of the classes, averaged over seeds and over blocks of `block` counts.

    Returns:
        The step in the middle of each block and, by class, the share there; (blocks,) each.
    """
    masks = [regular(record, every) for record in records]
    steps = np.array(records[0]["counted_steps"])[masks[0]]
    whole = len(steps) // block * block
    by_seed = [shares(record) for record in records]
    means = {
        name: np.mean([seed[name][mask][:whole] for seed, mask in zip(by_seed, masks, strict=True)], axis=0)
        for name in by_seed[0]
    }
    return (
        steps[:whole].reshape(-1, block).mean(axis=1),
        {name: np.asarray(mean.reshape(-1, block).mean(axis=1)) for name, mean in means.items()},
    )


def zero_by_layer(records: Sequence[Record], step: int) -> Array:
    """Share of elements that fp16 made zero at one counted step, (seeds, layers)."""
    rows = [np.array(r["zero"])[r["counted_steps"].index(step)] / np.array(r["elements"]) for r in records]
    return np.array(rows, dtype=np.float64)


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Label positions at least `gap` apart, each as near to its own as that allows, in the given order."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = dict.fromkeys(order, 0.0)
    last = -np.inf
    for i in order:
        last = placed[i] = max(positions[i], last + gap)
    return [placed[i] for i in range(len(positions))]
