"""What the commands that run checks share: run them, print the report, and exit with the status."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import track
from rich.text import Text

from ampsim.cli.options import ReportFormat
from ampsim.cli.terminal import (
    bold_table,
    err,
    fail,
    find_local_modules,
    out,
    print_table,
    usage_errors,
)

if TYPE_CHECKING:
    from ampsim.testing.check import Check, Result
    from ampsim.testing.child import Begin
    from ampsim.testing.report import Report

NO_RESULT = 3  # exit status; `explain` uses it for logs with too little information
Expected = Mapping[str, str]


def report_checks(
    judge: Callable[[Expected], "Report"],
    expect: str | None,
    xfail: Sequence[str] | None,
    form: ReportFormat | None,
) -> None:
    """Run the checks, print the report, and exit with the status."""
    from ampsim.testing.report import FORMATS

    find_local_modules()
    judged = _judged(judge, expect, xfail)
    if form:
        out.print(FORMATS[form](judged), end="")
    else:
        _show_table(judged)
    if judged.findings:
        raise typer.Exit(1)
    raise typer.Exit(NO_RESULT if judged.errors else 0)


def _judged(
    judge: Callable[[Expected], "Report"],
    expect: str | None,
    xfail: Sequence[str] | None,
) -> "Report":
    """Run the checks; exit if they cannot run."""
    from ampsim.testing.alarm import CannotJudgeError

    try:
        with usage_errors(TypeError):
            expected = {**_expected(expect), **dict.fromkeys(xfail or (), "--xfail")}
            judged = judge(expected)
    except CannotJudgeError as error:
        fail(str(error), NO_RESULT)
    for result in judged.errors:
        # A loop that raises is the user's error, like a script that raises.
        is_raised = result.check.label == "loop" and not result.is_overdue
        if is_raised and not judged.findings:
            fail(f"{result.target}: {result.text}")
    return judged


def run_checks(
    begins: "Mapping[str, Begin]", checks: "Sequence[Check]", limit: float
) -> "Report":
    """Run the checks on each target: in a child process, or in this process if there is no limit."""
    from ampsim.testing.child import judge_apart
    from ampsim.testing.report import Report

    def results() -> "Iterator[Result]":
        for name, begin in begins.items():
            if limit:
                yield from judge_apart(begin, checks, name=name, limit=limit)
            else:
                yield from begin()([check.name for check in checks])

    total = len(checks) * len(begins)
    quiet = not err.is_terminal
    return Report(
        track(results(), total=total, console=err, transient=True, disable=quiet)
    )


def _expected(text: str | None) -> dict[str, str]:
    """Return the mapping that `--expect` names."""
    if text is None:
        return {}
    from ampsim.testing.load import load

    form = f"--expect {text}: expected a JSON file {{check: reason}}, or module:attribute of a dict"
    if ":" in text and not Path(text).exists():
        mapping: Any = load(text)
    else:
        try:
            mapping = json.loads(Path(text).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{form}; {error}") from error
    if not isinstance(mapping, dict):
        raise ValueError(form)
    return {str(name): str(reason) for name, reason in mapping.items()}


def _show_table(judged: "Report") -> None:
    """Print a table, the findings, and a summary."""
    from ampsim.testing.report import COLOURS, sign

    table = bold_table("level")
    table.add_column("check", no_wrap=True)
    for name in judged.scalers:
        table.add_column(name, overflow="fold")
    for check, results in judged.rows():
        cells: list[str | Text] = [check.label, check.name]
        for result in results:
            style = COLOURS[result.outcome] if result else ""
            cells.append(Text(sign(result), style))
        table.add_row(*cells)
    print_table(table)
    out.print()
    is_told = False
    for result, text in judged.at_length():
        if result.hint and not is_told:
            is_told = True
            out.print(
                "Differences that a declaration may settle, if they are intended:\n"
            )
        out.print(f"{text}\n")
    reasons = [*judged.reasons("skipped"), *judged.reasons("xfailed")]
    for line in [*reasons, *judged.summary()]:
        out.print(line)
