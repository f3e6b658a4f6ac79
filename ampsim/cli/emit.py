"""``ampsim emit-test``: write a standalone pytest file for a failed check."""

import sys
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
from ampsim.cli.terminal import fail, out
from ampsim.core.files import check_own, replacing

Check = Annotated[
    str,
    typer.Argument(
        metavar="CHECK", help="Name of the check, as in a report.", show_default=False
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="module:attribute, as for `ampsim check`.",
        show_default=False,
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
            help="Time limit of the written test in seconds; 0 sets none.",
            min=0,
            max=MOST,
        ),
    ] = 300.0,
) -> None:
    """Write a standalone pytest file in which TARGET fails CHECK, to attach to an issue. It does
    not need ampsim.

    ampsim runs the file once, in an environment without ampsim, and writes it only if the test
    fails there. Exit status: 2 if the check passes or has no standalone test.

    Example: ampsim emit-test scale_is_never_subnormal torch.amp:GradScaler -o test_it.py
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
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
    except (ImportError, OSError, RecursionError, TypeError, ValueError) as error:
        fail(str(error))
