"""``ampsim lint``: find loss-scaling problems in training loops."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from ampsim.cli.files import SOURCE, expect_kind
from ampsim.cli.terminal import err, fail, usage_errors
from ampsim.lint import RULES
from ampsim.lint.output import FORMATS, explained
from ampsim.lint.run import run
from ampsim.lint.settings import selected


class Format(enum.StrEnum):
    """Output format of the findings."""

    text = "text"
    json = "json"
    github = "github"


def _print_page(code: str | None) -> None:
    if code is None:
        return
    if code.upper() not in RULES:
        fail(f"--explain {code}: no such rule; expected one of {', '.join(RULES)}")
    print(explained(RULES[code.upper()]), end="")
    raise typer.Exit


def _print_rules(wanted: bool) -> None:
    if wanted:
        for code, rule in RULES.items():
            print(f"{code}  {rule.severity:7}  {rule.name}")
        raise typer.Exit


def lint_files(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="File, or folder to search for *.py; - for standard input.",
        ),
    ],
    select: Annotated[
        str | None,
        typer.Option(
            metavar="CODES",
            help="Run only these rules or prefixes, e.g. AMP101,AMP13; or ALL.",
        ),
    ] = None,
    ignore: Annotated[
        str | None, typer.Option(metavar="CODES", help="Skip these rules.")
    ] = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="Output format; github: annotations of a workflow."
        ),
    ] = Format.text,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Print the page of a rule: reason, example, and fix.",
            callback=_print_page,
            is_eager=True,
        ),
    ] = None,
    rules: Annotated[
        bool,
        typer.Option(
            "--rules",
            help="List the rules with their severity.",
            callback=_print_rules,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Find loss-scaling problems in training loops.

    Reads the source and runs nothing. A file without a training loop is not checked. A note does
    not change the exit status.

    Example: ampsim lint train.py; ampsim lint --explain AMP101
    """
    for path in paths:
        expect_kind(path, SOURCE)
    first = paths[0]
    with usage_errors():
        codes = selected(
            first if first.is_dir() else first.parent, select=select, ignore=ignore
        )
    done = run(paths, codes)
    if written := FORMATS[form](done):
        print(written)
    for name, text in done.errors.items():
        err.print(f"ampsim: {name}: {text}")
    raise typer.Exit(done.status)
