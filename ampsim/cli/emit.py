"""``ampsim emit-test``: write a failure of a scaler or a loop as a pytest file that does without ampsim."""

import sys
from typing import Annotated

import typer

from ampsim.cli.options import MOST, Examples, File, Traits, Unsupported, declared_traits
from ampsim.cli.terminal import fail, out
from ampsim.core.files import replacing

Check = Annotated[
    str,
    typer.Argument(metavar="CHECK", help="As a report names it.", show_default=False),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="module:attribute, as the check's check takes it.",
        show_default=False,
    ),
]


def emit_test(
    check: Check,
    target: Target,
    file: File = None,
    examples: Examples = 60,
    trait: Traits = None,
    unsupported: Unsupported = None,
    time_limit: Annotated[
        float,
        typer.Option(
            help="Seconds that the written test may take; 0 is no limit.", min=0, max=MOST
        ),
    ] = 300.0,
) -> None:
    """Write a failure of CHECK by TARGET as a pytest file that imports the framework alone, to paste into an issue.

    It is run once, where ampsim cannot be imported, and written only if it fails there.
    A check that holds, or has no short test, is one sentence and exit status 2.

    Example: ampsim emit-test scale_is_never_subnormal torch.amp:GradScaler -o test_it.py
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        from ampsim.testing.emit.run_emitted import emit

        declared = declared_traits(trait or (), unsupported or ())
        source = emit(target, check, limit=time_limit, examples=examples, **declared)
        if file is None:
            out.print(source, end="")
        else:
            with replacing(file) as stream:
                stream.write(source.encode())
    except (ImportError, OSError, RecursionError, TypeError, ValueError) as error:
        fail(str(error))
