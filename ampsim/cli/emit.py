"""``ampsim emit-test``: print a standalone pytest file for a failed check."""

from typing import Annotated

import typer

from ampsim.cli.options import (
    Examples,
    Traits,
    Unsupported,
    declared_traits,
)
from ampsim.cli.terminal import find_local_modules, out, usage_errors

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
    examples: Examples = None,
    trait: Traits = None,
    unsupported: Unsupported = None,
) -> None:
    """Print a failed check as a standalone pytest file.

    The file reproduces the failure without ampsim, so you can attach it to an issue. ampsim runs
    the file once, in an environment without ampsim, and prints it only if the test fails there.

    Example: ampsim emit-test scale_is_never_subnormal torch.amp:GradScaler > test_it.py
    """
    find_local_modules()
    with usage_errors(TypeError):
        from ampsim.testing.emit.run_emitted import emit

        declared = declared_traits(trait or (), unsupported or ())
        source = emit(target, check, examples=examples, **declared)
    out.print(source, end="")
