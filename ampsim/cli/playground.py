"""``ampsim playground``: write the page with sliders for the settings of two loss scalers."""

from pathlib import Path
from typing import Annotated

import typer

from ampsim.cli.terminal import fail, out
from ampsim.core.files import DamagedFileError

Output = Annotated[Path, typer.Option("--out", "-o", help="The page.")]


def write_playground(output: Output = Path("playground.html")) -> None:
    """Write a page that replays recorded runs under two loss scalers with sliders; for logs use report."""
    from ampsim.diagnose.playground.build import playground

    try:
        output.write_text(playground(), encoding="utf-8")
    except FileNotFoundError as error:
        fail(f"{error.filename}: no such file; give the path of a file to write")
    except (DamagedFileError, OSError) as error:
        fail(str(error))
    out.print(f"wrote {output}", soft_wrap=True)
