"""``ampsim check``, ``check-ranks``: run the checks on scalers and ranks."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import track
from rich.text import Text

from ampsim.cli import options
from ampsim.cli.files import expect_kind
from ampsim.cli.options import ReportFormat, declared_traits
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
    from ampsim.testing.examples import Examples
    from ampsim.testing.report import Report
    from ampsim.testing.scaler_checks.check import ScalerCheck

NO_RESULT = 3  # exit status; `explain` uses it for logs with too little information
FEW = 3  # failures that declarations may settle, beyond which --propose saves work
Expected = Mapping[str, str]


def check_scalers(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help="A class with torch's constructor, a function make(rule), or a Subject, as module:attribute.",
        ),
    ],
    level: options.Levels = None,
    examples: options.Examples = None,
    seed: options.Seed = None,
    propose: options.Propose = False,
    strict: options.Strict = False,
    trait: options.Traits = None,
    unsupported: options.Unsupported = None,
    time_limit: options.TimeLimit = None,
    check: options.Names = None,
    expect: options.Expect = None,
    xfail: options.Xfail = None,
    report: options.Form = None,
) -> None:
    """Run the checks on a loss scaler.

    Each target gets a column. A failure that torch.amp.GradScaler has too is expected (xfailed),
    unless you pass --strict.

    A line `hint` shows how to declare a difference that is intentional; a declared difference is no
    finding. A line `repeat` is the command that repeats a failure; a line `emit` writes a test of it.
    A check that hangs or ends its process fails; a second hang stops the run. A check may take 60
    seconds of CPU time, or one second per example if that is longer.

    Example: ampsim check torch.amp:GradScaler --strict --check scale_is_never_subnormal
    """

    def judge(expected: Expected) -> "Report":
        from ampsim.testing.child import FORKS
        from ampsim.testing.examples import choose, warm_up
        from ampsim.testing.scaler_checks.check import time_limit as longest
        from ampsim.testing.scaler_checks.run import begin_checks, chosen
        from ampsim.testing.scaler_checks.subject import find

        declared = declared_traits(trait or (), unsupported or ())
        generated = choose(examples, seed)
        limit = longest(generated.number) if time_limit is None else time_limit
        checks = chosen(level, expected, check)
        for name in targets:
            expect_kind(Path(name), "module:attribute")
        if propose:
            declared = _propose(targets, checks, generated, declared)
        if limit and FORKS:
            warm_up()
        begins = {
            name: partial(
                begin_checks,
                partial(find, name, **declared),
                *generated,
                expected,
                limit,
                strict,
            )
            for name in targets
        }
        # After checks ran in this process, torch's threads would not survive a fork.
        report = run_checks(begins, checks, 0.0 if propose else limit)
        if not propose:
            _advise(report)
        return report

    report_checks(judge, expect, xfail, report)


def _advise(report: "Report") -> None:
    """Print the command that proposes traits for a scaler with several findings that they settle."""
    from ampsim.testing.check import hint_of

    hinted = [each.target for each in report.findings if hint_of(each.text)]
    for name in dict.fromkeys(hinted):
        count = hinted.count(name)
        if count >= FEW:
            err.print(
                f"{count} failures may be intended: run ampsim check --propose {name}"
            )


def _propose(
    targets: Sequence[str],
    checks: "Sequence[ScalerCheck]",
    generated: "Examples",
    declared: Mapping[str, Any],
) -> dict[str, Any]:
    """Print and return the traits that a scaler shows."""
    from ampsim.testing.scaler_checks.subject import find
    from ampsim.testing.scaler_checks.suggest_traits import propose, questions, written

    if len(targets) != 1:
        raise ValueError(f"--propose: expected one TARGET, not {len(targets)}")
    subject = find(targets[0], **declared)
    subject.try_out()
    scaler = propose(
        subject, checks, lambda check, other: check.passes(other, generated)
    )
    differences = scaler.traits.differences()
    command = ["ampsim", "check", targets[0], *scaler.traits.as_options()]
    for line in (
        "Differences from torch's scaler. Declare those that are intentional, and fix the others:",
        f"  Traits({written(differences)})",
        *(f"  {question}" for question in questions(subject, scaler.traits)),
        f"next: {shlex.join(command)}",
    ):
        err.print(line)
    return differences


def check_ranks(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help="module:make, where make(group) returns the scaler of one rank; or module:Class.",
        ),
    ],
    ranks: options.Ranks = 2,
    gradients: Annotated[
        options.Gradients,
        typer.Option(help="Shards of a gradient, or gradients of a torch wrapper."),
    ] = options.Gradients.sharded,
    unsupported: options.Unsupported = None,
    check: options.Names = None,
    expect: options.Expect = None,
    xfail: options.Xfail = None,
    report: options.Form = None,
) -> None:
    """Run the checks on a scaler that synchronizes ranks.

    The ranks of a process group must agree on skips, scale, and steps.

    Example: ampsim check-ranks my_scaler:make --ranks 2
    """

    def judge(expected: Expected) -> "Report":
        from ampsim.testing.ranks.judge import find, judge_ranks
        from ampsim.testing.report import Report

        makes = {name: find(name) for name in targets}
        return Report(
            replace(result, target=name)
            for name, make in makes.items()
            for result in judge_ranks(
                make,
                ranks,
                gradients.value,
                unsupported=unsupported or (),
                checks=check,
                expected=expected,
            )
        )

    report_checks(judge, expect, xfail, report)


def report_checks(
    judge: Callable[[Expected], "Report"],
    expect: str | None,
    xfail: Sequence[str] | None,
    form: ReportFormat | None,
) -> None:
    """Run the checks, print the report, and exit with the status."""
    from ampsim.testing.alarm import CannotJudgeError
    from ampsim.testing.report import FORMATS

    find_local_modules()
    try:
        with usage_errors(TypeError):
            expected = {**_expected(expect), **dict.fromkeys(xfail or (), "--xfail")}
            judged = judge(expected)
    except CannotJudgeError as error:
        fail(str(error), NO_RESULT)
    for result in judged.errors:
        # A loop that raises is the user's error, like a script that raises.
        is_raised = result.check.group == "loop" and not result.is_overdue
        if is_raised and not judged.findings:
            fail(f"{result.target}: {result.text}")
    if form:
        out.print(FORMATS[form](judged), end="")
    else:
        show_table(judged)
    if judged.findings:
        raise typer.Exit(1)
    raise typer.Exit(NO_RESULT if judged.errors else 0)


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


def show_table(judged: "Report") -> None:
    """Print a table, the findings, and a summary."""
    from ampsim.testing.check import hint_of
    from ampsim.testing.report import COLOURS, sign

    table = bold_table("level")
    table.add_column("check", no_wrap=True)
    for name in judged.scalers:
        table.add_column(name, overflow="fold")
    for check, results in judged.rows():
        cells: list[str | Text] = [check.group.split()[0], check.name]
        for result in results:
            style = COLOURS[result.outcome] if result else ""
            cells.append(Text(sign(result), style))
        table.add_row(*cells)
    print_table(table)
    out.print()
    texts = [text for _, text in judged.at_length()]
    hinted = [text for text in texts if hint_of(text)]
    for text in texts:
        if hinted and text is hinted[0]:
            out.print(
                "Differences that a declaration may settle, if they are intended:\n"
            )
        out.print(f"{text}\n")
    reasons = [*judged.reasons("skipped"), *judged.reasons("xfailed")]
    for line in [*reasons, *judged.summary()]:
        out.print(line)
