"""Options that commands share."""

import enum
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

from ampsim.cli.terminal import settings
from ampsim.core.machine import Rule
from ampsim.core.validation import nearest

STATUS = """\
Exit status: 0 nothing found, 1 findings, 2 could not be checked (usage, or a file), 3 no result (a
log with too little to tell, or a check that cannot run).
"""
MOST = 1_000_000  # examples, and seconds: system calls count milliseconds in 32 bits


class ReportFormat(enum.StrEnum):
    """File format of a report."""

    md = "md"
    json = "json"


Dialect = Annotated[
    str,
    typer.Argument(metavar="DIALECT", help="A name from `ampsim dialects`."),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="Parameter of the dialects, e.g. -s growth_interval=2. Repeatable.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--check", "-k", metavar="CHECK", help="Name of a check to run. Repeatable."
    ),
]
Traits = Annotated[
    list[str] | None,
    typer.Option(
        "--trait",
        help="Intentional difference of the scaler, e.g. min_scale=1.0, hysteresis=2, static=true. Repeatable. "
        "An unknown name lists all.",
        metavar="NAME=VALUE",
    ),
]
Unsupported = Annotated[
    list[str] | None,
    typer.Option(
        help="Feature the scaler does not support, e.g. factors (fixed at 2 and 1/2), threads, pickle. Repeatable. "
        "An unknown name lists all.",
        metavar="FEATURE",
    ),
]
Expect = Annotated[
    str | None,
    typer.Option(
        help="Checks expected to fail: a JSON file {check: reason}, or module:attribute.",
        metavar="WHICH",
    ),
]
Xfail = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of a check that is expected to fail. Repeatable.", metavar="CHECK"
    ),
]
Form = Annotated[
    ReportFormat | None,
    typer.Option("--report", help="Print a report instead of a table."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace a file that ampsim did not write.")
]
Examples = Annotated[
    int | None,
    typer.Option(
        "--examples",
        "-n",
        metavar="N",
        min=1,
        max=MOST,
        help="Generated examples per check; by default 60.",
    ),
]


def declared_traits(
    traits: Sequence[str], unsupported: Sequence[str]
) -> dict[str, Any]:
    """Return what `--trait` and `--unsupported` declare, as arguments of `Traits`."""
    from ampsim.testing.scaler_checks.traits import NO_OPTION, WORDS, Traits

    given = settings("--trait", traits, *WORDS)
    if "supported" in given:
        given["supported"] = frozenset(str(given["supported"]).split(","))
    known = {field.name for field in fields(Traits)} - {*NO_OPTION}
    for name in given.keys() - known:
        raise ValueError(
            f"--trait {name}: {nearest(name, known)}; declare other differences with a Subject"
        )
    declared = {**given, "unsupported": frozenset(unsupported)}
    Traits(**declared).follows(Rule())  # raises for an invalid value
    return declared
