"""``ampsim check``: judge loss scalers, each in a process of its own, or loops; show or write what was found."""

import enum
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from ampsim.cli.completion import complete_law
from ampsim.cli.schedule import replay_schedule
from ampsim.cli.terminal import err, fail, out, print_table, settings
from ampsim.core.arguments import nearest
from ampsim.core.files import replacing
from ampsim.core.machine import Rule

if TYPE_CHECKING:
    from ampsim.testing.child import Begin
    from ampsim.testing.law import Law, Result
    from ampsim.testing.report import Report


WITHOUT = "What it does not have, as factors (it has 2 and 1/2 alone), threads, pickle; a wrong name lists all."
MOST = 1_000_000  # examples, and seconds: a system's calls count milliseconds in 32 bits


class ReportFormat(enum.StrEnum):
    """A form of a report."""

    md = "md"
    json = "json"
    html = "html"


def check_target(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...",
            help="module:attribute, e.g. torch.amp:GradScaler; several stand side by side.",
            show_default=False,
        ),
    ],
    loop: Annotated[
        bool,
        typer.Option(
            "--loop",
            help="TARGET is make(scaler) of a training loop; what it is fed is called `batches` in the same module.",
        ),
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="TARGET is make(group) of a scaler that agrees with so many ranks over a group, or a class; level 6.",
            min=2,
            metavar="N",
        ),
    ] = None,
    gradients: Annotated[
        str,
        typer.Option(help="With --ranks: sharded, replicated, or of torch's own DDP or FSDP2.", metavar="KIND"),
    ] = "sharded",
    level: Annotated[list[int] | None, typer.Option("--level", "-l", help="0 to 5; again for more.")] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check", "--law", "-k", help="One check or law by its name; again for more.", autocompletion=complete_law
        ),
    ] = None,
    examples: Annotated[int, typer.Option("--examples", "-n", min=1, max=MOST, help="Histories per check.")] = 60,
    trait: Annotated[
        list[str] | None,
        typer.Option(
            help="What it does differently on purpose: min_scale, max_scale, hysteresis, delay, skips.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    without: Annotated[list[str] | None, typer.Option(help=WITHOUT, metavar="FEATURE")] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            help="Checks expected to fail: a JSON file {check: reason}, or module:attribute.", metavar="WHICH"
        ),
    ] = None,
    xfail: Annotated[
        list[str] | None,
        typer.Option(help="One check expected to fail.", metavar="CHECK", autocompletion=complete_law),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Replay a schedule that a check of threads found.", metavar="STEP:CHOICE,..."),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds per check, at least 60 by default, or per law of a loop, 600. 0: no limit, in this process, "
            "as a debugger wants it.",
            min=0,
            max=MOST,
            show_default=False,
        ),
    ] = None,
    report: Annotated[ReportFormat | None, typer.Option("--report", help="Write a report instead of a table.")] = None,
    file: Annotated[Path | None, typer.Option("--out", "-o", help="Where the report goes.", metavar="FILE")] = None,
) -> None:
    """Judge a loss scaler by the laws: a class with torch's constructor, make(rule), or a Subject; or --loop.

    Exit status 1 if a check fails that was not expected to, or passes that was.
    A check that hangs, or ends its process, fails, and the others go on.
    For torch's scaler and what inherits from it: --expect ampsim.testing.known:TORCH
    """
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module of the folder that this is run in, as `python -m` finds it
    targets, limit = [*dict.fromkeys(targets)], _limit(time_limit, examples, loop=loop)
    try:
        if loop and ranks:
            raise ValueError(
                "--loop and --ranks: expected one of the two; make(scaler, group=None) is called on ranks, too"
            )
        declared = declared_traits(trait or (), () if ranks else without or ())
        if schedule is not None:
            raise typer.Exit(replay_schedule(targets, check or [], schedule, declared))
        form = _format_of(file) if file and not report else report
        expected = {**_expected(expect), **dict.fromkeys(xfail or (), "--xfail")}
        with replacing(file) if file else nullcontext() as stream:
            if loop:
                judged = _judge_loops(targets, check, expected, limit)
            elif ranks:
                judged = _judge_ranks(targets, check, ranks, gradients, without or (), expected)
            else:
                judged = _judge(targets, level, check, declared, examples, expected, limit)
            _show(judged, None if stream else form)
            if stream and form:
                stream.write(_written(judged, form).encode())
    except (ImportError, OSError, RecursionError, TypeError, ValueError) as error:
        fail(str(error))
    raise typer.Exit(1 if judged.findings else 0)


def _limit(given: float | None, examples: int, *, loop: bool) -> float:
    """Return the seconds that one check or law may take."""
    if given is None and loop:
        from ampsim.testing.loop.judge import LIMIT

        return LIMIT
    return max(60.0, examples) if given is None else given


def declared_traits(traits: Sequence[str], without: Sequence[str]) -> dict[str, Any]:
    """Return what `--trait` and `--without` declare, as arguments of `Traits`."""
    from ampsim.testing.kit.subject import NO_OPTION, Traits

    given = settings("--trait", traits, "each", "all", "float32", "float64")
    known = {each.name for each in fields(Traits)} - {*NO_OPTION}
    for name in given.keys() - known:
        raise ValueError(f"--trait {name}: {nearest(name, known)}; anything else is declared by a Subject")
    declared = {**given, "without": frozenset(without)}
    Traits(**declared).follows(Rule())  # refuses what is wrong
    return declared


def _judge(
    targets: Sequence[str],
    levels: Sequence[int] | None,
    names: Sequence[str] | None,
    declared: Mapping[str, object],
    examples: int,
    expected: Mapping[str, str],
    limit: float,
) -> "Report":
    from ampsim.testing.child import FORKS
    from ampsim.testing.kit.check import warm_up
    from ampsim.testing.kit.judge import begin_judging, chosen
    from ampsim.testing.kit.subject import find

    checks = chosen(levels, expected, names)
    if limit and FORKS:
        warm_up()
    begins = {
        name: partial(begin_judging, partial(find, name, **declared), examples, expected, limit) for name in targets
    }
    return _judged(begins, checks, limit)


def _judge_loops(
    targets: Sequence[str], names: Sequence[str] | None, expected: Mapping[str, str], limit: float
) -> "Report":
    from ampsim.testing.loop.judge import begin_judging, chosen

    chosen(expected)  # refuses an unknown name
    begins = {name: partial(begin_judging, partial(_find_loop, name), expected, name, limit) for name in targets}
    return _judged(begins, chosen(names), limit)


def _judge_ranks(
    targets: Sequence[str],
    names: Sequence[str] | None,
    ranks: int,
    gradients: Any,
    without: Sequence[str],
    expected: Mapping[str, str],
) -> "Report":
    from ampsim.testing.ranks.judge import judge_ranks
    from ampsim.testing.ranks.subject import find
    from ampsim.testing.report import Report

    makes = {name: find(name)[0] for name in targets}
    return Report(
        replace(result, target=name)
        for name, make in makes.items()
        for result in judge_ranks(make, ranks, gradients, without=without, laws=names, expected=expected)
    )


def _find_loop(target: str) -> tuple[Any, Any]:
    """Return a loop's maker, and its batches from the same module."""
    from ampsim.testing.kit.subject import load

    make, module = load(target), target.partition(":")[0]
    try:
        batches = load(f"{module}:batches")
    except ValueError as error:
        raise ValueError(
            f"{str(error).partition(';')[0]}; expected what the loop is fed, as in: batches = [...]"
        ) from error
    return make, batches() if callable(batches) else batches


def _judged(begins: "Mapping[str, Begin]", checks: "Sequence[Law]", limit: float) -> "Report":
    """Judge each target by checks or laws: in a child process, or without a limit in this one."""
    from ampsim.testing.child import judge_apart
    from ampsim.testing.report import Report

    def results() -> "Iterator[Result]":
        for name, begin in begins.items():
            if limit:
                yield from judge_apart(begin, checks, name=name, limit=limit)
            else:
                yield from begin()([check.name for check in checks])

    total, quiet = len(checks) * len(begins), not err.is_terminal
    return Report(track(results(), "judging", total=total, console=err, transient=True, disable=quiet))


def _expected(text: str | None) -> dict[str, str]:
    """Return the mapping that `--expect` names."""
    if text is None:
        return {}
    from ampsim.testing.kit.subject import load

    try:
        is_file = ":" not in text or Path(text).exists()
        found: Any = json.loads(Path(text).read_text("utf-8")) if is_file else load(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--expect {text}: not JSON ({error}); expected {{check: reason}}") from error
    except RecursionError as error:
        raise ValueError(f"--expect {text}: nested too deep; expected {{check: reason}}") from error
    except OSError as error:
        raise ValueError(f"--expect {text}: {error.strerror}; expected a JSON file {{check: reason}}") from error
    if not isinstance(found, dict) or not all(isinstance(word, str) for pair in found.items() for word in pair):
        raise ValueError(f"--expect {text}: expected a mapping from checks to reasons")
    return found


def _format_of(file: Path) -> ReportFormat:
    try:
        return ReportFormat(file.suffix.removeprefix("."))
    except ValueError:
        fail(f"--out {file}: expected a name that ends in .md, .json or .html; or say --report")


def _written(judged: "Report", form: ReportFormat) -> str:
    from ampsim.testing.report import FORMATS

    return FORMATS[form](judged)


def _show(judged: "Report", form: ReportFormat | None) -> None:
    """Print a report; or the table, then every finding, then one sentence per scaler."""
    if form is not None:
        out.print(_written(judged, form), markup=False, end="")
        return
    from ampsim.testing.report import COLOURS, sign

    spelled = out.encoding.startswith("utf")  # other encodings have no ticks
    table = Table("level", box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    for name in judged.scalers:
        table.add_column(escape(name), overflow="fold")
    for check, results in judged.rows():
        signs = [
            f"[{COLOURS[result.outcome]}]{sign(result) if spelled else result.outcome}" if result else ""
            for result in results
        ]
        table.add_row(check.group.split()[0], check.name, *signs)
    print_table(table)
    for finding in judged.findings:
        out.print(f"\n{finding.text}", markup=False)
    out.print()
    for line in [*judged.unasked(), *judged.summary()]:
        out.print(line, markup=False)
