"""``ampsim check``: run the checks on a loss scaler."""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ampsim.cli import options
from ampsim.cli.checking import Expected, report_checks, run_checks
from ampsim.cli.files import expect_kind
from ampsim.cli.options import MOST, declared_traits
from ampsim.cli.terminal import err

if TYPE_CHECKING:
    from ampsim.testing.examples import Examples
    from ampsim.testing.report import Report
    from ampsim.testing.scaler_checks.check import ScalerCheck

FEW = 3  # failures that declarations may settle, beyond which --propose saves work
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
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time limit of a check. 0 sets no limit and runs in this process, for a debugger.",
        min=0,
        max=MOST,
    ),
]


def check_scalers(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help="A class with torch's constructor, a function make(rule), or a Subject, as module:attribute.",
        ),
    ],
    level: Levels = None,
    examples: options.Examples = None,
    seed: Seed = None,
    propose: Propose = False,
    strict: Strict = False,
    trait: options.Traits = None,
    unsupported: options.Unsupported = None,
    time_limit: TimeLimit = None,
    check: options.Names = None,
    expect: options.Expect = None,
    xfail: options.Xfail = None,
    report: options.Form = None,
) -> None:
    """Run the checks on a loss scaler.

    Each target gets a column. A failure that torch.amp.GradScaler has too is expected (xfailed),
    unless you pass --strict.

    A line `hint` shows how to declare a difference that is intentional; a declared difference is no
    finding. A line `repeat` is the command that repeats a failure; a line `emit` writes a test of
    it. A check that hangs or ends its process fails; a second hang stops the run. A check may take
    60 seconds of CPU time, or one second per example if that is longer.

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
        # After --propose ran checks in this process, torch's threads would not survive a fork.
        limit_apart = 0.0 if propose else limit
        report = run_checks(begins, checks, limit_apart)
        if not propose:
            _advise(report)
        return report

    report_checks(judge, expect, xfail, report)


def _advise(report: "Report") -> None:
    """Print the command that proposes traits for a scaler with several findings that they settle."""
    hinted = [each.target for each in report.findings if each.hint]
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
