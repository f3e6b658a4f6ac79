"""``ampsim check-loop``: run the checks on a training loop or a training script."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ampsim.cli import options
from ampsim.cli.checking import Expected, report_checks, run_checks
from ampsim.cli.files import SOURCE, expect_kind
from ampsim.core.extras import needing

if TYPE_CHECKING:
    from ampsim.testing.report import Report

SCRIPT = ".py"  # how the path of a script ends
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Seconds for a script, and a quarter for each repeated iteration, or of CPU time for "
        "each check of a loop. Default: 600. For a loop, 0 sets no limit and runs in this process, "
        "for a debugger.",
        min=0,
        max=options.MOST,
    ),
]
OnCPU = Annotated[
    bool, typer.Option("--on-cpu", help="Run a script that asks for CUDA on the CPU.")
]
Steps = Annotated[
    int,
    typer.Option(metavar="N", help="End a script after N optimizer steps.", min=1),
]


def check_loops(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET [-- ARGUMENTS]",
            help="train.py with its own arguments after --, or module:make, where make(scaler) returns a "
            "Loop. The module of make defines `batches`, at least 3.",
        ),
    ],
    time_limit: TimeLimit = None,
    on_cpu: OnCPU = False,
    steps: Steps = 140,
    check: options.Names = None,
    expect: options.Expect = None,
    xfail: options.Xfail = None,
    report: options.Form = None,
) -> None:
    """Run the checks on a training script or loop.

    A script runs unchanged for a few steps in a child process. One iteration is run several times
    from the same state: unchanged, at another loss scale, and with an inf in a gradient. Its files
    go to a temporary folder. A script without an enabled scaler or a step is a usage error.

    Example: ampsim check-loop --on-cpu train.py -- --fp16 --batch-size 4
    """

    def judge(expected: Expected) -> "Report":
        expect_kind(Path(targets[0]), SOURCE, "module:make")
        if targets[0].endswith(SCRIPT):
            from ampsim.testing.script_checks.report import ScriptReport
            from ampsim.testing.script_checks.run import TIME_LIMIT, judge_script

            with needing():
                results, run = judge_script(
                    targets[0],
                    targets[1:],
                    steps=steps,
                    on_cpu=on_cpu,
                    time_limit=time_limit or TIME_LIMIT,
                    checks=check,
                    expected=expected,
                )
            return ScriptReport(results, run)
        if ":" not in targets[0]:
            raise ValueError(
                f"{targets[0]!r}: expected a script such as train.py, or module:make"
            )
        return _check_loops(targets, check, expected, time_limit)

    report_checks(judge, expect, xfail, report)


def _check_loops(
    targets: Sequence[str],
    check: list[str] | None,
    expected: Expected,
    time_limit: float | None,
) -> "Report":
    from ampsim.testing.check import require_known
    from ampsim.testing.loop.checks import CHECKS
    from ampsim.testing.loop.judge import LIMIT, begin_judging, chosen

    limit = LIMIT if time_limit is None else time_limit
    require_known(CHECKS, expected)
    begins = {
        name: partial(begin_judging, partial(_find_loop, name), expected, name, limit)
        for name in targets
    }
    return run_checks(begins, chosen(check), limit)


def _find_loop(target: str) -> tuple[Any, Any]:
    """Return `make` and `batches` of a module; raise ImportError if its framework is missing."""
    from ampsim.testing.load import load
    from ampsim.testing.loop.play import run_class

    make: Any = load(target)
    module = target.partition(":")[0]
    try:
        batches = load(f"{module}:batches")
    except ValueError as error:
        raise ValueError(
            f"{str(error).partition(';')[0]}; expected the batches of the loop in this module: batches = [...]"
        ) from error
    with needing():
        run_class(make)
    return make, batches() if callable(batches) else batches
