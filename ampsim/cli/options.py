"""Options that the commands which run checks share."""

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


class Gradients(enum.StrEnum):
    """Who reduces the gradients that `ampsim check-ranks` generates."""

    sharded = "sharded"
    DDP = "DDP"
    FSDP2 = "FSDP2"


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
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time limit of a check. 0 sets no limit and runs in this process, for a debugger.",
        min=0,
        max=MOST,
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
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Seed of the examples; by default they are the same in each run.",
        min=0,
    ),
]
Propose = Annotated[
    bool,
    typer.Option(
        "--propose",
        help="For a new scaler: print the traits that it shows, and what is left if they are declared.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Count the failures that torch.amp.GradScaler has too."
    ),
]
Levels = Annotated[
    list[int] | None,
    typer.Option(
        "--level",
        "-l",
        metavar="N",
        help="Level of checks to run: 0 state machine, 1 torch's calls and errors, 2 several optimizers, 3 threads, "
        "4 checkpoint, 5 numerics. Repeatable.",
    ),
]
Ranks = Annotated[
    int,
    typer.Option("--ranks", help="Number of ranks in the group.", min=2, metavar="N"),
]


def declared_traits(
    traits: Sequence[str], unsupported: Sequence[str]
) -> dict[str, Any]:
    """Return what `--trait` and `--unsupported` declare, as arguments of `Traits`."""
    from ampsim.testing.scaler_checks.traits import CLAIMED, NO_OPTION, Traits

    given = settings(
        "--trait",
        traits,
        "each",
        "all",
        "float32",
        "float64",
        "clean",
        "growth",
        "backoff",
        *CLAIMED,
    )
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
