"""The tables of results, cell by cell: a cell is text, or a number with its function.

A new table is a function that returns it, and a row of `TABLES`. The text shows it by
``#datatable("name")[Its caption.]``.
"""

import re
from collections.abc import Callable
from functools import partial

from ampsim.core.advice import advise
from ampsim.core.json_lines import Record
from figures.derived_numbers import followed
from figures.results import Result
from figures.tables import TABLES as GALLERY
from paper import sources
from paper.numbers import NUMBERS, conformance, runs
from paper.values import Cell, Formula, Number, Table

SOURCES = {  # of a check's requirement -> words of the table
    "torch": "torch's",
    "the package": "its own",
    "ours": "ours",
}


def broken() -> Table:
    """Return the checks that scalers fail away from the ends of float32."""

    def cells(check: str) -> tuple[Cell, ...]:
        requirement = Number(
            "conformance",
            lambda run: SOURCES[conformance.promises(run)[check].partition(":")[0]],
            "text",
        )
        return (
            check.replace("_", " "),
            requirement,
            Number("conformance", lambda run: failing_scalers(run)[check], "text"),
        )

    rows = map(cells, failing_scalers(sources.load("conformance")))
    return Table(("check", "requirement", "failed by"), tuple(rows), "lll")


def failing_scalers(run: Result) -> dict[str, str]:
    """Return by check the scalers that fail it away from the ends; a star: with a stub."""
    scalers: dict[str, list[str]] = {}
    for row in conformance.installed(run):
        for check in conformance.away(run, row):
            scalers.setdefault(check, []).append(
                row["arm"] + "*" * bool(row["patched"])
            )
    return {
        check: ", ".join(sorted(scalers[check]))
        for check in conformance.promises(run)
        if check in scalers
    }


def evidence() -> Table:
    """Return what the paper looked at, how much of it could be tested, and the outcome."""

    def count(name: str) -> str:
        return str(NUMBERS[name].compute())

    rows = (
        ("recorded runs of scalers", "traces.count", "all", "traces.repeated", "repeated to the bit"),
        ("public CUDA logs", "cuda.runs", "cuda.followed", "cuda.whole", "consistent"),
        ("those that print overflows", "cuda.bound.logs", "all", "cuda.bound.within", "within T1 or T10"),
        ("logs that readers call sick", "sight.problems", "sight.problems.decided", "sight.cleared", "called healthy"),
        ("logs that they call healthy", "sight.healthy", "sight.healthy.decided", "sight.false", "called sick"),
        ("scaler classes", "conformance.classes", "all", "conformance.gradient.classes", "give wrong gradients"),
        ("setups of engines", "engines.count", "all", "engines.failed", "fail a check"),
        ("loops of packages", "loops.loops", "all", "loops.failed", "fail a check"),
    )  # fmt: skip
    cells = tuple(
        tuple(count(cell) if cell in NUMBERS else cell for cell in row) for row in rows
    )
    head = ("evidence", "found", "decided", "", "outcome")
    return Table(head, cells, "lrrrl")


def rivals() -> Table:
    """Return what wrong growth intervals cannot do in the followed logs."""
    names = {"half": "half the interval", "one more": "one step more", "twice": "twice"}
    rows = [
        (
            text,
            runs.cuda(partial(runs.rival, interval=name), ",d"),
            runs.cuda(partial(runs.rival_logs, interval=name), "d"),
        )
        for name, text in names.items()
    ]
    control = (
        runs.cuda(lambda run: runs.total(followed(run), "control"), ",d"),
        runs.cuda(runs.controlled, "d"),
    )
    rows.append(("three times", *control))
    right = (
        runs.cuda(lambda run: sum(len(row["breaks"]) for row in followed(run)), "d"),
        runs.cuda(runs.differing, "d"),
    )
    head = ("growth interval", "moves it forbids", "logs that refute it")
    return Table(head, (("the right one", *right), *rows), "lrr")


def gradients() -> Table:
    """Return the classes whose optimizer receives wrong gradients, with the shortest sequence."""

    def cells(arm: str) -> tuple[Cell, ...]:
        def of(text: Callable[[Record], str]) -> Number:
            return Number("conformance", lambda run: text(run.arm(arm).first), "text")

        return (
            conformance.TITLES[arm],
            of(lambda row: row["version"] + "*" * bool(row["patched"])),
            of(lambda row: shortest(row["checks"][conformance.GRADIENT])),
            of(lambda row: seen(row["checks"][conformance.GRADIENT])),
        )

    head = ("scaler", "version", "sequence", "gradients")
    return Table(head, tuple(map(cells, conformance.TITLES)), "llll")


def shortest(failure: Record) -> str:
    """Return the calls that lead to a failure."""
    (history,) = (line for line in failure["did"] if line.startswith("history: "))
    return str(history.removeprefix("history: "))


def seen(failure: Record) -> str:
    """Return the gradients that the optimizer received, rounded; 3 is right."""
    values = re.findall(r"[\d.]+", failure["seen"].partition(" expected")[0])
    return ", ".join(f"{float(value):.3g}" for value in values)


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


def sight() -> Table:
    """Return the verdicts of `ampsim explain` on logs that it had not seen, by truth and sample."""
    samples = runs.samples()

    def cells(truth: str, verdict: str) -> tuple[Cell, ...]:
        counts = (runs.verdicts(sample)[truth, verdict] for sample in samples)
        return (truth, verdict, *map(str, counts))

    def words(truth: str) -> tuple[Cell, ...]:
        counts = (runs.says_nan(truth, sample) for sample in samples)
        return (truth, 'has "nan" or "inf"', *map(str, counts))

    rows = [cells(truth, verdict) for truth in runs.TRUTHS for verdict in runs.VERDICTS]
    rows += [words(truth) for truth in runs.TRUTHS]
    head = ("the log shows", "verdict", *(f"sample {sample}" for sample in samples))
    return Table(head, tuple(rows), "ll" + "r" * len(samples))


def from_gallery(stem: str) -> Table:
    """Return a table of the gallery."""
    shown = GALLERY[stem](sources.load(stem))
    return Table(shown.columns, shown.rows, "l" * len(shown.columns))


TABLES: dict[str, Callable[[], Table]] = {
    "broken": broken,
    "evidence": evidence,
    "gradients": gradients,
    "log_power": partial(from_gallery, "log_power"),
    "settings": settings,
    "sight": sight,
    "loops": partial(from_gallery, "loops"),
    "rivals": rivals,
    "ranks_cells": partial(from_gallery, "ranks_cells"),
}
