"""Training loops and threads under the checks, and a census of public loops."""

import json
from collections.abc import Iterable, Sequence
from functools import partial

from ampsim.core.json_lines import Record
from figures.derived_numbers import total
from figures.results import Result
from paper.sources import ROOT
from paper.values import Formula, Number

loops = partial(Number, "loops")
census = partial(Number, "census")
threads = partial(Number, "threads")
engines = partial(Number, "engines")

MEASURED = (
    ROOT / "docs" / "lint" / "measured.jsonl"
)  # findings that human readers reviewed
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


def passes(run: Result, column: str, depth: int, interval: int) -> int:
    """Return how many passes of torch's scaler a column counts, with this many steps in flight."""
    return sum(run.arm(f"torch depth {depth} G={interval}").column(column))


def wrong_share(run: Result, depth: int, interval: int) -> float:
    """Return the share of these passes that were unscaled by a wrong scale."""
    wrong, checked = (
        passes(run, what, depth, interval) for what in ("wrong", "checked")
    )
    return wrong / checked


def findings(*, unseen: bool) -> list[Record]:
    """Return the findings in files that the rules were made with, or in unseen ones."""
    _, *records = map(json.loads, MEASURED.read_text("utf-8").splitlines())
    return [
        record for record in records if record["sample"].startswith("unseen") is unseen
    ]


def repositories(rows: Iterable[Record]) -> int:
    """Return the number of repositories that rows of the census name."""
    return len({name for row in rows for name in row["repositories"]})


NUMBERS: dict[str, Number | Formula] = {
    "threads.torch.2.1": threads(lambda run: wrong_share(run, 1, 2), "%0"),
    "threads.torch.2000.1.wrong": threads(
        lambda run: passes(run, "wrong", 1, 2000), ",d"
    ),
    "threads.torch.2000.1.checked": threads(
        lambda run: passes(run, "checked", 1, 2000), ",d"
    ),
    "threads.ours.checked": threads(lambda run: total(run, "ampsim ", "checked"), ",d"),
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
