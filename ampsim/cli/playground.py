"""``ampsim playground``: write the loss scaler playground, an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from ampsim.cli.terminal import fail, out
from ampsim.core.files import DamagedFileError

Output = Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")]


def write_playground(output: Output = Path("playground.html")) -> None:
    """Write an HTML page that replays recorded runs under two loss scalers. For a log, use report."""
    from ampsim.diagnose.playground.build import playground

    try:
        output.write_text(playground(), encoding="utf-8")
    except FileNotFoundError as error:
        fail(f"{error.filename}: no such file; give the path of a file to write")
    except (DamagedFileError, OSError) as error:
        fail(str(error))
    out.print(f"wrote {output}", soft_wrap=True)
