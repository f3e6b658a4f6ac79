"""The tables of results, cell by cell: a cell is text, or a number with its function.

A new table is a function that returns it, and a row of `TABLES`. The text shows it by
``#datatable("name")[Its caption.]``.
"""

from collections.abc import Callable
from functools import partial

from ampsim.core.advice import advise
from figures.tables import TABLES as GALLERY
from paper import log_tables, software_tables, sources
from paper.values import Cell, Formula, Table


def log_power() -> Table:
    """Return in how many runs a log reveals the fault of a scaler, by what the log prints."""
    shown = GALLERY["log_power"](sources.load("log_power"))
    rows: list[tuple[Cell, ...]] = []
    for fault, *cells in shown.rows:
        counts = (cell.partition(" of ")[0] for cell in cells)
        rows.append((fault, *counts))
    every = [head.removeprefix("every ") for head in shown.columns[1:-2]]
    head = ("fault", *every, "overflows", "counts")
    groups = (("", 1), ("every so many steps", len(every)), ("", 2))
    return Table(head, tuple(rows), "l" + "r" * (len(every) + 2), groups)


def settings() -> Table:
    """Return the growth interval that is advised, by steps of a run and rate of its bad steps."""
    rates = (0.0, 0.0001, 0.001, 0.01)

    def cells(steps: int) -> tuple[Cell, ...]:
        interval = (
            Formula(partial(growth_interval, steps, rate), ",d") for rate in rates
        )
        return (f"{steps:,}", *interval)

    rows = tuple(cells(steps) for steps in (1_000, 10_000, 100_000, 1_000_000))
    head = ("steps", "none", "0.01 %", "0.1 %", "1 %")
    return Table(head, rows, "rrrrr", (("", 1), ("rate of bad steps", 4)))


def growth_interval(steps: int, rate: float) -> int:
    """Return the growth interval for a run."""
    return advise(steps, rate).growth_interval


TABLES: dict[str, Callable[[], Table]] = {
    "flow": log_tables.flow,
    "growths": log_tables.growths,
    "counts": log_tables.counts,
    "example": log_tables.example,
    "dialects": software_tables.settings_of_dialects,
    "log_power": log_power,
    "excluded": log_tables.excluded,
    "followed": log_tables.followed_logs,
    "repositories": log_tables.repositories,
    "sight": log_tables.sight,
    "findings": software_tables.findings,
    "settings": settings,
}
