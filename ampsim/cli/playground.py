"""``ampsim playground``: write the loss scaler playground, an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from ampsim.cli.options import Force
from ampsim.cli.report import MARK
from ampsim.cli.terminal import out, write_own

Output = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="HTML file to write.")
]


def write_playground(
    output: Output = Path("playground.html"), force: Force = False
) -> None:
    """Write an HTML page that replays runs under two scalers.

    The page replays recorded runs. For a log, use `ampsim report`.

    Example: ampsim playground -o scalers.html
    """
    from ampsim.runs.playground.build import playground

    write_own(output, MARK, playground().encode(), force=force)
    out.print(f"wrote {output}", soft_wrap=True)
