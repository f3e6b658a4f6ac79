"""The ``ampsim`` command. Exit status: 0 good, 1 a finding, 2 wrong use or an unreadable file."""

import enum
import json
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from ampsim.core import dialects
from ampsim.core.files import DamagedFileError
from ampsim.core.replay.fold import states
from ampsim.core.trace import read
from ampsim.diagnose import commands as diagnose

if TYPE_CHECKING:
    from ampsim.testing.kit.report import Report

app = typer.Typer(
    help="ampsim: is my loss scaler right, and what did it do to my run?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
traces = typer.Typer(help="Recorded trajectories of loss scalers.", no_args_is_help=True)
app.add_typer(traces, name="traces")
app.command()(diagnose.explain)

out, err = Console(soft_wrap=True, highlight=False), Console(stderr=True, soft_wrap=True, highlight=False)


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave with status 2."""
    err.print(f"ampsim: {message}", markup=False)
    raise typer.Exit(2)


@traces.command("check")
def check_traces(
    file: Annotated[Path, typer.Argument(help="JSON Lines file of traces, plain or .gz", show_default=False)],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name every mismatch, not only the first.")] = False,
) -> None:
    """Replay every trace of FILE through the reference machine and compare to the last bit.

    Prints 'N of M match'. Exit status 1 if any trace differs, naming the first.
    """
    matching, mismatches, number = 0, [], 0
    try:
        for number, trace in enumerate(
            track(read(file), "replaying", console=err, transient=True, disable=not err.is_terminal), 1
        ):
            try:
                difference = trace.mismatch()
            except (dialects.UnknownDialectError, TypeError, ValueError) as error:
                fail(f"{file}, trace {number}: {error}")
            matching += difference is None
            if difference:
                mismatches.append(f"{trace.system} {dict(trace.params)} {trace.sequence}: {difference}")
    except FileNotFoundError:
        fail(f"{file}: no such file; give the path of a .jsonl or .jsonl.gz file of traces")
    except IsADirectoryError:
        fail(f"{file} is a folder; give the path of a .jsonl or .jsonl.gz file of traces")
    except (DamagedFileError, PermissionError) as error:
        fail(str(error))
    out.print(f"{matching} of {number} match")
    if mismatches:
        for line in mismatches if verbose else mismatches[:1]:
            out.print(line, markup=False)
        raise typer.Exit(1)


@app.command("dialects")
def list_dialects() -> None:
    """List the loss scalers that the reference machine speaks: name, parameters, source."""
    table = Table("dialect", "parameters", "read from", box=None, pad_edge=False, header_style="bold")
    for name in dialects.names():
        dialect = dialects.ALL[name]
        names = ", ".join([*dialect.parameters, *dialect.options])
        table.add_row(*map(escape, (name, names, dialect.source)))
    (out if out.is_terminal else Console(width=200)).print(table)  # a pipe has no width to fit


@app.command("replay")
def replay_history(
    dialect: Annotated[str, typer.Argument(help="A name from `ampsim dialects`.", show_default=False)],
    history: Annotated[str, typer.Argument(help="One digit per update: 1 overflow, 0 clean.", show_default=False)],
    parameters: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="name=value, e.g. -s interval=2", metavar="NAME=VALUE")
    ] = None,
) -> None:
    """Print the scale after each update of HISTORY.

    Example: ampsim replay torch.amp.GradScaler 00100 -s interval=2
    """
    if not history or set(history) - {"0", "1"}:
        fail(f"history {history!r}: expected digits 0 (clean) and 1 (overflow), e.g. 0001000")
    try:
        rule = dialects.get(dialect, **dict(_parameter(text) for text in parameters or ()))
    except (dialects.UnknownDialectError, TypeError, ValueError) as error:
        fail(str(error))
    try:
        for digit, state in zip(history, states(rule, [digit == "1" for digit in history]), strict=False):
            out.print(f"{'overflow' if digit == '1' else 'clean':8}  {state.scale!r}")
    except Exception as error:  # what the framework itself raises is a result, not a failure of ours
        out.print(f"raises    {type(error).__name__}: {error}", markup=False)


def _parameter(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text!r}: expected NAME=VALUE, e.g. interval=2")
    words: dict[str, object] = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    raise ValueError(f"--set {text!r}: expected a number, true, false or none after '='")


class ReportFormat(enum.StrEnum):
    """A form of a report."""

    md = "md"
    json = "json"
    html = "html"


@app.command("check")
def check_target(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET...", help="module:attribute, e.g. torch.amp:GradScaler", show_default=False),
    ],
    level: Annotated[list[int] | None, typer.Option("--level", "-l", help="0 to 5; again for more.")] = None,
    examples: Annotated[int | None, typer.Option("--examples", "-n", min=1, help="Histories per check.")] = None,
    report: Annotated[ReportFormat | None, typer.Option("--report", help="Write a report instead of a table.")] = None,
    file: Annotated[Path | None, typer.Option("--out", "-o", help="Where the report goes.", metavar="FILE")] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            help="Checks expected to fail: a JSON file {check: reason}, or module:attribute.", metavar="WHICH"
        ),
    ] = None,
    xfail: Annotated[list[str] | None, typer.Option(help="One check expected to fail.", metavar="CHECK")] = None,
) -> None:
    """Judge a loss scaler by the laws: a class with torch's constructor, or make(rule).

    Exit status 1 if a check fails that was not expected to, or passes that was. For torch's scaler and what
    inherits from it: --expect ampsim.testing.known:TORCH
    """
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module of the folder that this is run in, as `python -m` finds it
    try:
        form = _format_of(file) if file and not report else report
        judged = _judge(targets, level, examples, {**_expected(expect), **dict.fromkeys(xfail or (), "--xfail")})
        _write(judged, form, file)
    except (ImportError, OSError, TypeError, ValueError) as error:
        fail(str(error))
    raise typer.Exit(1 if judged.findings else 0)


def _judge(targets: list[str], levels: list[int] | None, examples: int | None, expected: dict[str, str]) -> "Report":
    from ampsim.testing.kit import judge, subject  # `kit` first: says what to install if anything is missing
    from ampsim.testing.kit.check import EXAMPLES
    from ampsim.testing.kit.report import Report

    checks = judge.chosen(levels, expected)
    subjects = [subject.as_subject(subject.load(text), name=text) for text in targets]
    runs = (judge.judge(each, checks, examples=examples or EXAMPLES, expected=expected) for each in subjects)
    total, quiet = len(checks) * len(subjects), not err.is_terminal
    return Report(track(chain.from_iterable(runs), "judging", total=total, console=err, transient=True, disable=quiet))


def _expected(text: str | None) -> dict[str, str]:
    """Return the mapping that `--expect` names."""
    if text is None:
        return {}
    from ampsim.testing.kit.subject import load

    found: Any = load(text) if ":" in text and not Path(text).exists() else json.loads(Path(text).read_text())
    if not isinstance(found, dict) or not all(isinstance(word, str) for pair in found.items() for word in pair):
        raise ValueError(f"--expect {text}: expected a mapping from checks to reasons")
    return found


def _format_of(file: Path) -> ReportFormat:
    try:
        return ReportFormat(file.suffix.removeprefix("."))
    except ValueError:
        fail(f"--out {file}: expected a name that ends in .md, .json or .html; or say --report")


def _write(judged: "Report", form: ReportFormat | None, file: Path | None) -> None:
    from ampsim.testing.kit.report import FORMATS

    if form is not None and file is not None:
        file.write_text(FORMATS[form](judged))
    elif form is not None:
        typer.echo(FORMATS[form](judged), nl=False)
    if form is None or file is not None:
        _show(judged)


def _show(judged: "Report") -> None:
    """Print the table, then every finding, then one sentence per scaler."""
    from ampsim.testing.kit.report import COLOURS, sign

    table = Table("level", box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    for name in judged.scalers:
        table.add_column(escape(name), overflow="fold")
    for check, results in judged.rows():
        signs = [f"[{COLOURS[result.outcome]}]{sign(result)}" if result else "" for result in results]
        table.add_row(f"L{check.level}", check.name, *signs)
    out.print(table)
    for finding in judged.findings:
        out.print(f"\n{finding.text}", markup=False)
    out.print()
    for line in judged.summary():
        out.print(line, markup=False)


def main() -> None:
    """Run the command line."""
    app(prog_name="ampsim")
