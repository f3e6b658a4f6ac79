"""``ampsim check``, ``check-loop``, ``check-ranks``: ask the checks of anyone's scalers, loops or ranks."""

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import track
from rich.table import Table
from rich.text import Text

from ampsim.cli import options
from ampsim.cli.options import SHARED, ReportFormat, declared_traits
from ampsim.cli.terminal import err, fail, out, print_table
from ampsim.core.extras import needing
from ampsim.core.files import replacing

if TYPE_CHECKING:
    from ampsim.testing.check import Check, Result
    from ampsim.testing.child import Begin
    from ampsim.testing.report import Report

CANNOT_JUDGE = 3  # exit status, as `explain` has it where a log cannot tell
Checks = list[str] | None
Expected = Mapping[str, str]


def judging(ask: Callable[..., "Report"]) -> Callable[..., None]:
    """Make a command of what judges targets by checks: it has the options that all such commands have."""

    def command(
        expect: str | None,
        xfail: list[str] | None,
        report: ReportFormat | None,
        file: Path | None,
        **asked: Any,
    ) -> None:
        _report(partial(ask, **asked), expect, xfail, report, file)

    own = [
        each
        for each in inspect.signature(ask).parameters.values()
        if each.name not in ("check", "expected")
    ]
    parameters = [*own, *SHARED]
    update_wrapper(command, ask).__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


@judging
def check_scalers(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...", help="module:attribute; several: side by side.", show_default=False
        ),
    ],
    check: Checks,
    expected: Expected,
    level: options.Levels = None,
    examples: options.Examples = 60,
    trait: options.Traits = None,
    unsupported: options.Unsupported = None,
    schedule: options.Schedule = None,
    time_limit: options.TimeLimit = None,
) -> "Report":
    """Judge a loss scaler by the checks: a class with torch's constructor, make(rule), or a Subject.

    Exit status 1 if a check is broken that was not expected to be, or holds that was; 3 if it cannot be judged.
    A line `choice` says what to declare where a finding is meant; declared, it is no finding.
    A check in which it hangs, or ends its process, fails, and the others go on, up to a second in which it hangs.
    A check may take 60 seconds of CPU time, or one per example.
    For torch's scaler and what inherits from it: --expect ampsim.testing.known_failures:TORCH

    Example: ampsim check torch.amp:GradScaler --check scale_is_never_subnormal
    """
    from ampsim.testing.child import FORKS
    from ampsim.testing.kit.check import time_limit as longest
    from ampsim.testing.kit.judge import begin_judging, chosen, warm_up
    from ampsim.testing.kit.subject import find

    declared = declared_traits(trait or (), unsupported or ())
    limit = longest(examples) if time_limit is None else time_limit
    if schedule is not None:
        raise typer.Exit(_replay(targets, check or [], schedule, declared))
    checks = chosen(level, expected, check)
    if limit and FORKS:
        warm_up()
    found = {name: partial(find, name, **declared) for name in targets}
    begins = {
        name: partial(begin_judging, find, examples, expected, limit)
        for name, find in found.items()
    }
    return _judged(begins, checks, limit)


def _replay(
    targets: Sequence[str], checks: Sequence[str], text: str, declared: Mapping[str, object]
) -> int:
    """Run one check of threads under one schedule, show it step by step, and return the exit status."""
    from ampsim.testing.kit.judge import THREADS, chosen
    from ampsim.testing.kit.subject import find

    if len(targets) != 1 or len(checks) != 1:
        raise ValueError(
            "--schedule: expected one TARGET and one --check, as the line `replay` of a finding has them"
        )
    (check,) = chosen(names=checks)
    if check.level != THREADS:
        raise ValueError(
            f"--schedule: {check.name} has no threads; expected a check of level {THREADS}"
        )
    try:
        schedule = {
            int(step): int(choice)
            for step, choice in (pair.split(":") for pair in text.split(",") if pair)
        }
    except ValueError:
        raise ValueError(f"--schedule {text!r}: expected STEP:CHOICE,..., e.g. 73:1") from None
    try:
        check(find(targets[0], **declared), schedule=schedule)
    except AssertionError as error:
        out.print(str(error))
        return 1
    out.print(f"{check.name} holds under this schedule")
    return 0


@judging
def check_loops(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...",
            help="module:make, where make(scaler) returns a Loop; `batches` in the module, 3 or more, feed it.",
            show_default=False,
        ),
    ],
    check: Checks,
    expected: Expected,
    time_limit: options.TimeLimit = None,
) -> "Report":
    """Judge a training loop by the checks: make(scaler) returns a Loop, and is called on ranks if it takes a group.

    Exit status 1 if a check is broken that was not expected to be, or holds that was; 3 if it cannot be judged.
    A check may take ten minutes of CPU time.

    Example: ampsim check-loop my_loop:make
    """
    from ampsim.testing.loop.judge import LIMIT, begin_judging, chosen

    limit = LIMIT if time_limit is None else time_limit
    chosen(expected)  # refuses an unknown name
    begins = {
        name: partial(begin_judging, partial(_find_loop, name), expected, name, limit)
        for name in targets
    }
    return _judged(begins, chosen(check), limit)


@judging
def check_ranks(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...",
            help="module:make, where make(group) makes one rank's scaler, or a class.",
            show_default=False,
        ),
    ],
    check: Checks,
    expected: Expected,
    ranks: options.Ranks = 2,
    gradients: Annotated[
        str, typer.Option(help="sharded, or of torch's own DDP or FSDP2.", metavar="KIND")
    ] = "sharded",
    unsupported: options.Unsupported = None,
) -> "Report":
    """Judge scalers that agree over a process group by the checks: one verdict, one scale, one count of steps.

    Exit status 1 if a check is broken that was not expected to be, or holds that was.

    Example: ampsim check-ranks my_scaler:make --ranks 2
    """
    from ampsim.testing.ranks.judge import find, judge_ranks
    from ampsim.testing.report import Report

    kind: Any = gradients
    makes = {name: find(name) for name in targets}
    return Report(
        replace(result, target=name)
        for name, make in makes.items()
        for result in judge_ranks(
            make, ranks, kind, unsupported=unsupported or (), checks=check, expected=expected
        )
    )


def _report(
    judge: Callable[..., "Report"],
    expect: str | None,
    xfail: Sequence[str] | None,
    form: ReportFormat | None,
    file: Path | None,
) -> None:
    """Judge, given what is expected, show or write what came of it, and leave with the exit status."""
    from ampsim.testing.alarm import CannotJudgeError

    if "" not in sys.path:
        sys.path.insert(
            0, ""
        )  # a module of the folder that this is run in, as `python -m` finds it
    try:
        form = _format_of(file) if file and not form else form
        expected = {**_expected(expect), **dict.fromkeys(xfail or (), "--xfail")}
        with replacing(file) if file else nullcontext() as stream:
            judged = judge(expected=expected)
            raised = [
                each for each in judged.errors if each.check.group == "loop" and not each.is_overdue
            ]
            if raised and not judged.findings:
                raise ValueError(f"{raised[0].target}: {raised[0].text}")
            _show(judged, None if stream else form)
            if stream and form:
                stream.write(_written(judged, form).encode())
    except (ImportError, OSError, RecursionError, TypeError, ValueError) as error:
        fail(str(error))
    except CannotJudgeError as error:
        fail(str(error), CANNOT_JUDGE)
    raise typer.Exit(1 if judged.findings else CANNOT_JUDGE if judged.errors else 0)


def _find_loop(target: str) -> tuple[Any, Any]:
    """Return a loop's maker, and its batches from the same module; ImportError where its framework is not there."""
    from ampsim.testing.load import load
    from ampsim.testing.loop.runs import run_class

    make: Any = load(target)
    module = target.partition(":")[0]
    try:
        batches = load(f"{module}:batches")
    except ValueError as error:
        raise ValueError(
            f"{str(error).partition(';')[0]}; expected what the loop is fed, as in: batches = [...]"
        ) from error
    with needing():
        run_class(make)
    return make, batches() if callable(batches) else batches


def _judged(begins: "Mapping[str, Begin]", checks: "Sequence[Check]", limit: float) -> "Report":
    """Judge each target by checks: in a child process, or without a limit in this one."""
    from ampsim.testing.child import judge_apart
    from ampsim.testing.report import Report

    def results() -> "Iterator[Result]":
        for name, begin in begins.items():
            if limit:
                yield from judge_apart(begin, checks, name=name, limit=limit)
            else:
                yield from begin()([check.name for check in checks])

    total, quiet = len(checks) * len(begins), not err.is_terminal
    return Report(
        track(results(), "judging", total=total, console=err, transient=True, disable=quiet)
    )


def _expected(text: str | None) -> dict[str, str]:
    """Return the mapping that `--expect` names."""
    if text is None:
        return {}
    from ampsim.testing.load import load

    try:
        is_file = ":" not in text or Path(text).exists()
        found: Any = json.loads(Path(text).read_text("utf-8")) if is_file else load(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"--expect {text}: not JSON ({error}); expected {{check: reason}}"
        ) from error
    except RecursionError as error:
        raise ValueError(f"--expect {text}: nested too deep; expected {{check: reason}}") from error
    except OSError as error:
        raise ValueError(
            f"--expect {text}: {error.strerror}; expected a JSON file {{check: reason}}"
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(word, str) for pair in found.items() for word in pair
    ):
        raise ValueError(f"--expect {text}: expected a mapping from checks to reasons")
    return found


def _format_of(file: Path) -> ReportFormat:
    try:
        return ReportFormat(file.suffix.removeprefix("."))
    except ValueError:
        fail(f"--out {file}: expected a name that ends in .md, .json or .xml; or say --report")


def _written(judged: "Report", form: ReportFormat) -> str:
    from ampsim.testing.report import FORMATS

    return FORMATS[form](judged)


def _show(judged: "Report", form: ReportFormat | None) -> None:
    """Print a report; or the table, then every finding, then one sentence per scaler."""
    if form is not None:
        out.print(_written(judged, form), end="")
        return
    from ampsim.testing.report import COLOURS, sign

    spelled = out.encoding.startswith("utf")  # other encodings have no ticks
    table = Table("level", box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    for name in judged.scalers:
        table.add_column(name, overflow="fold")
    for check, results in judged.rows():
        signs = [
            Text(sign(result) if spelled else result.outcome, COLOURS[result.outcome])
            if result
            else ""
            for result in results
        ]
        table.add_row(check.group.split()[0], check.name, *signs)
    print_table(table)
    for _, text in judged.at_length():
        out.print(f"\n{text}")
    out.print()
    for line in [*judged.unasked(), *judged.summary()]:
        out.print(line)
