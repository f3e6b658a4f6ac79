"""Rows of a benchmark: printed as a table of ratios beside goals, and written to `build/bench`."""

import argparse
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from experiments.runner import device, provenance

FOLDER = provenance.ROOT / "build" / "bench"
COLUMNS = (
    "work",
    "held against",
    "unit",
    "ours",
    "theirs",
    "figure",
    "",
    "goal",
    "met",
)
SPEEDUP, SHARE, TIME = "theirs / ours", "ours / theirs", "ours"


class Row(NamedTuple):
    """One comparison; each list has one time per trial."""

    work: str
    against: str  # a peer, or the floor: the same work with nothing but what cannot be left out
    unit: str
    ours: list[float]
    theirs: list[float]
    figure: str = SHARE  # which number the goal is for: SPEEDUP, SHARE or TIME
    goal: float | None = None  # the least for SPEEDUP, the most for the others

    def figures(self) -> list[float]:
        """Return the number that the goal is for, one per trial."""
        if self.figure == TIME:
            return self.ours
        pairs = zip(self.ours, self.theirs, strict=True)
        if self.figure == SPEEDUP:
            return [theirs / ours for ours, theirs in pairs]
        return [ours / theirs for ours, theirs in pairs]

    def is_met(self) -> bool:
        """Tell whether the middle trial reaches the goal."""
        middle = statistics.median(self.figures())
        assert self.goal is not None  # noqa: S101
        return middle >= self.goal if self.figure == SPEEDUP else middle <= self.goal

    def cells(self) -> list[str]:
        """Return the row of the table."""
        times = [f"{statistics.median(each):.1f}" for each in (self.ours, self.theirs)]
        figures = self.figures()
        ends = f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"
        cells = [self.work, self.against, self.unit, *times, ends, self.figure]
        if self.goal is None:
            return [*cells, "", ""]
        sign = ">=" if self.figure == SPEEDUP else "<="
        return [*cells, f"{sign} {self.goal:g}", "yes" if self.is_met() else "no"]


def run(name: str, measure: Callable[[], list[Row]]) -> None:
    """Measure, print the table, and write the rows with their provenance."""
    argparse.ArgumentParser(prog=f"python -m experiments.bench.{name}").parse_args()
    rows = measure()
    path = FOLDER / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    data_file.write(path, origin(name), [row._asdict() for row in rows])
    Console(width=160).print(table(rows))
    print(f"written to {path}")


def table(rows: Sequence[Row]) -> Table:
    """Return the middle trial of each row; of the figure also the lowest and the highest."""
    shown = Table(title=f"CPU time on {device.cpu_name()}, one thread")
    for column in COLUMNS:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*row.cells())
    return shown


def origin(name: str) -> Record:
    """Return where the numbers come from."""
    return {
        "script": f"experiments/bench/{name}.py",
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "platform": platform.platform(),
        "cpu": device.cpu_name(),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "kernels": os.environ["AMPSIM_KERNELS"],
        "date": provenance.now(),
    }


def require_same(what: str, same: bool) -> None:
    """Raise where two sides computed different things: a ratio of their times would mean nothing.

    Raises:
        RuntimeError: `same` is false.
    """
    if not same:
        raise RuntimeError(
            f"{what}: expected the same from both sides; do not compare their times"
        )
