"""``ampsim emit-test``: write a failure of a scaler, a loop or ranks as a pytest file that does without ampsim."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ampsim.cli.check import MOST, WITHOUT, declared_traits
from ampsim.cli.completion import complete_law
from ampsim.cli.terminal import fail, out
from ampsim.core.files import replacing

Law = Annotated[
    str,
    typer.Argument(metavar="LAW", help="As `ampsim check` names it.", show_default=False, autocompletion=complete_law),
]
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="module:attribute, e.g. torch.amp:GradScaler.", show_default=False)
]


def emit_test(
    law: Law,
    target: Target,
    loop: Annotated[
        bool, typer.Option("--loop", help="TARGET is make(scaler) of a training loop, LAW one of loops.")
    ] = False,
    ranks: Annotated[
        int | None, typer.Option(help="As `ampsim check` takes it: LAW is one of so many ranks.", min=2, metavar="N")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", "-o", help="The test; else it is printed.", metavar="FILE")
    ] = None,
    examples: Annotated[int, typer.Option("--examples", "-n", min=1, max=MOST, help="Histories, at most.")] = 60,
    trait: Annotated[list[str] | None, typer.Option(help="As `ampsim check` takes it.", metavar="NAME=VALUE")] = None,
    without: Annotated[list[str] | None, typer.Option(help=WITHOUT, metavar="FEATURE")] = None,
    time_limit: Annotated[
        float, typer.Option(help="Seconds that the written test may take; 0 is no limit.", min=0, max=MOST)
    ] = 300.0,
) -> None:
    """Write a failure of LAW by TARGET as a pytest file that imports the peer alone, to paste into an issue.

    It is run once, where ampsim cannot be imported, and written only if it fails there.
    A law that holds, or has no short test, is one sentence and exit status 2.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        from ampsim.testing.emit.proof import require_failure

        if loop:
            from ampsim.testing.emit.loop import emit_loop_test

            source, raises = emit_loop_test(law, target)
        elif ranks:
            from ampsim.testing.emit.ranks import emit_rank_test

            source, raises = emit_rank_test(law, target, ranks)
        else:
            from ampsim.testing.emit.scaler import emit_scaler_test

            declared = declared_traits(trait or (), without or ())
            source, raises = emit_scaler_test(law, target, examples=examples, **declared)
        require_failure(source, raises=raises, limit=time_limit)
        if file is None:
            out.print(source, markup=False, end="")
        else:
            with replacing(file) as stream:
                stream.write(source.encode())
    except (ImportError, OSError, RecursionError, TypeError, ValueError) as error:
        fail(str(error))
