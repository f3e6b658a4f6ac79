"""``ampsim explain``: say what the loss scale did in a training log."""

from pathlib import Path
from typing import Annotated

import typer

from ampsim.cli.report import read_log, write_page
from ampsim.cli.terminal import out

Log = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="A training log: console text, JSON Lines, CSV, trainer_state.json, TensorBoard, W&B, ampsim.watch.",
        show_default=False,
    ),
]
Page = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write the page of `ampsim report`.", show_default=False),
]


def explain_log(log: Log, html: Page = None) -> None:
    """Say in plain words what the loss scale did in LOG, and what to try. Exit status 1 if something is wrong."""
    from ampsim.diagnose.explain import explain

    history = read_log(log)
    text, found = explain(history)
    out.print(text, markup=False)
    if html is not None:
        write_page(history, log, html)
    raise typer.Exit(1 if found else 0)
