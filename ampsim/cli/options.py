"""The options that ask for checks, as more than one command has them."""

import enum
import inspect
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ampsim.cli.terminal import settings
from ampsim.core.machine import Rule
from ampsim.core.validation import nearest

MOST = 1_000_000  # examples, and seconds: a system's calls count milliseconds in 32 bits


class ReportFormat(enum.StrEnum):
    """A form of a report."""

    md = "md"
    json = "json"
    xml = "xml"  # JUnit's


Names = Annotated[
    list[str] | None,
    typer.Option("--check", "--check", "-k", help="One check by its name; again for more."),
]
Traits = Annotated[
    list[str] | None,
    typer.Option(
        "--trait",
        help="What it does differently on purpose: min_scale, max_scale, hysteresis, static, powers_of_two; a wrong "
        "name lists all.",
        metavar="NAME=VALUE",
    ),
]
Unsupported = Annotated[
    list[str] | None,
    typer.Option(
        help="What it does not have, as factors (it has 2 and 1/2 alone), threads, pickle; a wrong name lists all.",
        metavar="FEATURE",
    ),
]
Expect = Annotated[
    str | None,
    typer.Option(
        help="Checks expected to be broken: a JSON file {check: reason}, or module:attribute.",
        metavar="WHICH",
    ),
]
Xfail = Annotated[
    list[str] | None,
    typer.Option(help="One check expected to be broken.", metavar="CHECK"),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        help="Seconds per check; 0: no limit, in this process, as a debugger wants it.",
        min=0,
        max=MOST,
        show_default=False,
    ),
]
Form = Annotated[
    ReportFormat | None,
    typer.Option("--report", help="Write a report instead of a table; xml is JUnit's."),
]
File = Annotated[
    Path | None, typer.Option("--out", "-o", help="Where the report goes.", metavar="FILE")
]
Examples = Annotated[
    int, typer.Option("--examples", "-n", min=1, max=MOST, help="Histories per check.")
]
Levels = Annotated[list[int] | None, typer.Option("--level", "-l", help="0 to 5; again for more.")]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="Replay a schedule that a check of threads found.", metavar="STEP:CHOICE,..."
    ),
]
Ranks = Annotated[int, typer.Option("--ranks", help="Of the group.", min=2, metavar="N")]


def _shared(
    check: Names = None,
    expect: Expect = None,
    xfail: Xfail = None,
    report: Form = None,
    file: File = None,
) -> None:
    """Have the options that all commands have which judge by checks."""


SHARED = tuple(inspect.signature(_shared).parameters.values())


def declared_traits(traits: Sequence[str], unsupported: Sequence[str]) -> dict[str, Any]:
    """Return what `--trait` and `--unsupported` declare, as arguments of `Traits`."""
    from ampsim.testing.kit.subject import NO_OPTION, Traits

    given = settings(
        "--trait", traits, "each", "all", "float32", "float64", "clean", "growth", "backoff"
    )
    known = {each.name for each in fields(Traits)} - {*NO_OPTION}
    for name in given.keys() - known:
        raise ValueError(
            f"--trait {name}: {nearest(name, known)}; anything else is declared by a Subject"
        )
    declared = {**given, "unsupported": frozenset(unsupported)}
    Traits(**declared).follows(Rule())  # refuses what is wrong
    return declared
