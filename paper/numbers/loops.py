"""Training loops and engines under the checks."""

from collections.abc import Sequence
from functools import partial

from ampsim.core.json_lines import Record
from figures.results import Result
from paper.values import Formula, Number

loops = partial(Number, "loops")
engines = partial(Number, "engines")

OUR_SCALER = ("flax, nnx", "equinox")  # loops of packages that have no scaler


def packages(rows: Sequence[Record]) -> set[str]:
    """Return the names of the packages that loops are of."""
    return {row["arm"].partition(",")[0] for row in rows}


def with_scaler(run: Result) -> list[Record]:
    """Return the loops of packages that train with a scaler, torch's or their own."""
    return [
        row for row in run.records if "checks" in row and row["arm"] not in OUR_SCALER
    ]


def failed_cells(row: Record) -> list[Record]:
    """Return the cells in which a loop fails a check."""
    return [cell for cell in row["checks"].values() if cell["outcome"] == "broken"]


def failed(run: Result) -> list[Record]:
    """Return the loops of packages with a scaler that fail a check."""
    return [row for row in with_scaler(run) if failed_cells(row)]


def unreported(run: Result) -> int:
    """Return in how many cells a loop fails a check without a known public report."""
    cells = [cell for row in failed(run) for cell in failed_cells(row)]
    return sum("https://" not in cell["known"] for cell in cells)


def run_engines(run: Result) -> list[Record]:
    """Return the setups of engines that were run, and not only read."""
    return [row for row in run.records if "checks" in row]


def failed_engines(run: Result) -> list[Record]:
    """Return the setups that fail a check on one rank or on two."""
    return [
        row
        for row in run_engines(run)
        if {*row["checks"].values(), *row["rank_checks"].values()} != {"passed"}
    ]


def halved(run: Result) -> list[Record]:
    """Return the setups that take another gradient only where the loss scale grows."""
    growing, constant = (
        "growing_scale_leaves_gradients_whole",
        "gradients_do_not_depend_on_loss_scale",
    )
    checks = [(row, row["checks"]) for row in run_engines(run)]
    return [
        row
        for row, outcomes in checks
        if outcomes[growing] != "passed" and outcomes[constant] == "passed"
    ]


def bugs(run: Result) -> list[Record]:
    """Return the seeded bugs."""
    return [*run.arm("bugs").first["bugs"].values()]


NUMBERS: dict[str, Number | Formula] = {
    "loops.bugs": loops(lambda run: len(bugs(run)), "d"),
    "loops.loops": loops(lambda run: len(with_scaler(run)), "words"),
    "loops.frameworks": loops(lambda run: len(packages(with_scaler(run))), "words"),
    "loops.failed": loops(lambda run: len(failed(run)), "words"),
    "loops.failed.packages": loops(lambda run: len(packages(failed(run))), "words"),
    "loops.cells": loops(
        lambda run: sum(len(failed_cells(row)) for row in failed(run)), "words"
    ),
    "loops.unreported": loops(unreported, "words"),
    "engines.count": engines(lambda run: len(run_engines(run)), "d"),
    "engines.failed": engines(lambda run: len(failed_engines(run)), "words"),
    "engines.halved": engines(lambda run: len(halved(run)), "words"),
}
