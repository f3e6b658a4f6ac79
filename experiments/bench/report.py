"""One timing loop and one table for all benchmarks; rows are written to `build/bench`, too."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from ampsim.runs.record import data_file
from experiments.runner import device, provenance

FOLDER = provenance.ROOT / "build" / "bench"
COLUMNS = ("work", "compared with", "unit", "ours", "theirs", "theirs / ours", "goal")
Arms = Mapping[
    str, Callable[[], float]
]  # each does its work once, and returns the time


class Row(NamedTuple):
    """One comparison; each list has one time per trial."""

    work: str
    against: str  # a peer, or the floor: the same work with nothing but what cannot be left out
    unit: str
    ours: list[float]
    theirs: list[float]
    goal: float | None = None  # the least that theirs / ours should be

    def ratios(self) -> list[float]:
        """Return theirs / ours, one per trial."""
        pairs = zip(self.theirs, self.ours, strict=True)
        return [theirs / ours for theirs, ours in pairs]

    def cells(self) -> list[str]:
        """Return the row of the table: the middle trial, and the ends of the ratio."""
        ours, theirs = map(statistics.median, (self.ours, self.theirs))
        ratios = self.ratios()
        middle = statistics.median(ratios)
        ends = f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        goal = ""
        if self.goal is not None:
            goal = f"{self.goal:g}, " + ("met" if middle >= self.goal else "not met")
        return [self.work, self.against, self.unit, f"{ours:.1f}", f"{theirs:.1f}", ends, goal]  # fmt: skip


def measure_arms(
    trial: Callable[[], AbstractContextManager[Arms]],
    rounds: int,
    trials: int,
    *,
    above: str = "",
    warm_up: int = 3,
) -> dict[str, list[float]]:
    """Time arms in turn, so that what slows the machine slows all of them alike.

    Args:
        trial: Makes the arms; at its end it raises if they computed different things.
        rounds: Rounds of a trial, in which every arm has one turn. The order turns.
        trials: Number of trials, each with arms of its own.
        above: Arm whose time is subtracted in each round; empty for none.
        warm_up: Rounds before, in which optimizers make their state.

    Returns:
        By arm, the median of each trial.
    """
    medians: dict[str, list[float]] = {}
    for _ in range(trials):
        with trial() as arms:
            times = [one_round(arms, turn) for turn in range(warm_up + rounds)]
        for arm in arms:
            kept = times[warm_up:]
            taken = [each[arm] - (each[above] if above else 0.0) for each in kept]
            medians.setdefault(arm, []).append(statistics.median(taken))
    return medians


def one_round(arms: Arms, turn: int) -> dict[str, float]:
    """Return the time of every arm, from the arm on whose turn it is to begin."""
    names = [*arms]
    first = turn % len(names)
    return {name: arms[name]() for name in (*names[first:], *names[:first])}


def microseconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this process for some work."""
    start = time.process_time()
    work()
    return 1e6 * (time.process_time() - start)


def require_same(what: str, same: bool) -> None:
    """Raise where two sides computed different things: a ratio of their times would mean nothing.

    Raises:
        RuntimeError: `same` is false.
    """
    if not same:
        raise RuntimeError(
            f"{what}: expected the same from both sides; do not compare their times"
        )


def run(name: str, measure: Callable[[], list[Row]]) -> None:
    """Measure, print the table, and write the rows with their provenance."""
    rows = measure()
    origin = {
        "script": f"experiments/bench/{name}.py",
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "platform": platform.platform(),
        "cpu": device.cpu_name(),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "kernels": os.environ["AMPSIM_KERNELS"],
        "date": provenance.now(),
    }
    path = FOLDER / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    data_file.write(path, origin, [row._asdict() for row in rows])
    Console(width=160).print(table(rows))
    print(f"written to {path}")


def table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    shown = Table(*COLUMNS, title=f"CPU time on {device.cpu_name()}, one thread")
    for row in rows:
        shown.add_row(*row.cells())
    return shown
