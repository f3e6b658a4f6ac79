"""``ampsim check-ranks``: run the checks on a scaler that synchronizes ranks."""

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ampsim.cli import options
from ampsim.cli.checking import Expected, report_checks

if TYPE_CHECKING:
    from ampsim.testing.report import Report


class Gradients(enum.StrEnum):
    """Who reduces the gradients that `ampsim check-ranks` generates."""

    sharded = "sharded"
    DDP = "DDP"
    FSDP2 = "FSDP2"


Ranks = Annotated[
    int,
    typer.Option("--ranks", help="Number of ranks in the group.", min=2, metavar="N"),
]


def check_ranks(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help="module:make, where make(group) returns the scaler of one rank; or module:Class.",
        ),
    ],
    ranks: Ranks = 2,
    gradients: Annotated[
        Gradients,
        typer.Option(help="Shards of a gradient, or gradients of a torch wrapper."),
    ] = Gradients.sharded,
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
