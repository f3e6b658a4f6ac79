"""``ampsim emit-test``: write a standalone pytest file for a failed check."""

from typing import Annotated

import typer

from ampsim.cli.options import (
    MOST,
    Examples,
    File,
    Force,
    Traits,
    Unsupported,
    declared_traits,
)
from ampsim.cli.terminal import find_local_modules, out, usage_errors
from ampsim.core.files import check_own, replacing

Check = Annotated[
    str,
    typer.Argument(metavar="CHECK", help="Name of the check, as in a report."),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="module:attribute, as for `ampsim check`.",
    ),
]


def emit_test(
    check: Check,
    target: Target,
    file: File = None,
    force: Force = False,
    examples: Examples = None,
    trait: Traits = None,
    unsupported: Unsupported = None,
    time_limit: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Time limit of the written test; 0 sets none.",
            min=0,
            max=MOST,
        ),
    ] = 300.0,
) -> None:
    """Write a failed check as a standalone pytest file.

    The file reproduces the failure without ampsim, so you can attach it to an issue. ampsim runs the
    file once, in an environment without ampsim, and writes it only if the test fails there.

    Example: ampsim emit-test scale_is_never_subnormal torch.amp:GradScaler -o test_it.py
    """
    find_local_modules()
    with usage_errors():
        from ampsim.testing.emit.run_emitted import emit

        if file is not None:
            check_own(file, f'"""{check}: ', force=force)
        declared = declared_traits(trait or (), unsupported or ())
        source = emit(target, check, limit=time_limit, examples=examples, **declared)
        if file is None:
            out.print(source, end="")
        else:
            with replacing(file) as stream:
                stream.write(source.encode())
