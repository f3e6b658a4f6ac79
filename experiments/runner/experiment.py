"""What an experiment is: its settings, its units, and what its source says before it is imported.

An experiment is a module with a docstring (the question, then the device), a frozen `Config`, a
`SMOKE` config that ends within 5 s, `arms(config)`, `inputs()` (name -> sha256 of what it reads, if
it reads anything) and `run(config, arm, seed, device, tick)`, which returns one record and calls
`tick(steps done)` after each step. `arms` maps names to frozen dataclasses. A unit is one arm with
one seed and depends on nothing but the config, so units run in any order and in any process. If the
module has `table(records)`, what that returns is printed at the end.

Its constants, all optional, are read from the source, as an import would take seconds and may fail:
``DEVICES`` (where it runs; cpu and cuda), ``REQUIRES`` (packages beside torch), ``REPEATS = False``
(it measures time), ``RECOMPUTED`` (arms that `make reproduce` computes, with the first seed; it
copies the other units; all).
"""

import ast
import dataclasses
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from ampsim.core import json_lines
from ampsim.core.json_lines import Record

FOLDER = Path(__file__).parent.parent
DATA = FOLDER / "data"
HERE = FOLDER.parent / "build" / "here"  # what a reproduction makes on this machine
INSTALL = "pip install -c constraints.txt -e '.[experiments,report]' --group frameworks"
T = TypeVar("T")


class Arm(Protocol):
    """The settings in which runs of an experiment differ: an instance of a frozen dataclass of
    plain values.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]


class UsageError(ValueError):
    """Invalid arguments: the message has the value, the expected value, and a fix."""


@dataclass(frozen=True)
class Config:
    """The settings that every experiment has."""

    steps: int = 1000  # optimizer steps per unit
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of weights and batches

    def plain(self) -> Record:
        """Return the settings as they stand in a file, where tuples are lists."""
        plain: Record = json_lines.decode(json_lines.encode(dataclasses.asdict(self)))
        return plain


@dataclass(frozen=True)
class Single:
    """The one arm of an experiment that times everything side by side: a second arm would be
    measured with it.
    """


@dataclass(frozen=True)
class Unit:
    """One arm with one seed."""

    arm: str
    seed: int
    settings: Arm  # the arm itself

    @property
    def key(self) -> str:
        """The unit's name in a journal and in messages."""
        return f"{self.arm}, seed {self.seed}"

    def named(self) -> Record:
        """Return what stands first in the unit's record."""
        return {
            "arm": self.arm,
            "seed": self.seed,
            "settings": dataclasses.asdict(self.settings),
        }


@dataclass(frozen=True)
class Experiment:
    """An experiment by the name of its file, which is read and not imported, but for `module`."""

    stem: str

    @property
    def path(self) -> Path:
        """The source file."""
        return FOLDER / f"{self.stem}.py"

    def data(self, device: str) -> Path:
        """Return the data file that is committed, of a device as it is called in a path."""
        return FOLDER / "data" / device / f"{self.stem}.jsonl"

    def data_here(self, device: str) -> Path:
        """Return the data file that a reproduction writes, and git ignores."""
        return HERE / "data" / device / f"{self.stem}.jsonl"

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def question(self) -> str:
        """The first paragraph of the docstring, on one line."""
        return " ".join((ast.get_docstring(self.tree) or "").split("\n\n")[0].split())

    def constant(self, name: str, default: T) -> T:
        """Return the literal that the source assigns to a name, or `default` where it assigns none."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                return ast.literal_eval(node.value)  # type: ignore[no-any-return]
        return default

    @property
    def devices(self) -> tuple[str, ...]:
        """Where it can run."""
        return self.constant("DEVICES", ("cpu", "cuda"))

    @property
    def repeats(self) -> bool:
        """Whether a second run on the same machine gives the same records."""
        return self.constant("REPEATS", default=True)

    @property
    def recomputed(self) -> tuple[str, ...]:
        """The arms that a reproduction computes, with the first seed; empty: all units."""
        arms: tuple[str, ...] = ()
        return self.constant("RECOMPUTED", arms)

    def is_recomputed(self, arm: str, seed: int, seeds: Sequence[int]) -> bool:
        """Return whether a reproduction computes the unit of an arm and a seed."""
        return not self.recomputed or (arm in self.recomputed and seed == seeds[0])

    @property
    def missing_packages(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        required: tuple[str, ...] = ()
        return [
            name
            for name in self.constant("REQUIRES", required)
            if importlib.util.find_spec(name) is None
        ]

    @property
    def module(self) -> Any:
        """The module itself, imported."""
        return importlib.import_module(f"experiments.{self.stem}")

    def inputs(self) -> dict[str, str]:
        """Return the sha256 of each input, by name."""
        return self.module.inputs() if hasattr(self.module, "inputs") else {}

    def units(self, config: Config) -> list[Unit]:
        """Return arms x seeds, in the order of the file."""
        arms: Mapping[str, Arm] = self.module.arms(config)
        return [
            Unit(name, seed, arm) for name, arm in arms.items() for seed in config.seeds
        ]

    @property
    def lacks(self) -> str:
        """Which packages are missing, and how to install them; empty if none is."""
        missing = self.missing_packages
        return f"requires {' and '.join(missing)}; {INSTALL}" if missing else ""

    def require_packages(self) -> None:
        """Raise UsageError if a required package is not installed."""
        if self.lacks:
            raise UsageError(f"{self.stem} {self.lacks}")


def stems() -> list[str]:
    """Return the name of every experiment, sorted."""
    return sorted(
        path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_")
    )
