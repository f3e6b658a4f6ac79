"""``ampsim explain``: say what the loss scale did in a training log."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ampsim.cli.report import read_log, write_page
from ampsim.cli.terminal import out, print_table

if TYPE_CHECKING:
    from ampsim.diagnose.history import History

ROWS = 10
"""Of the ledger, the last."""

Log = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="A training log: console text, JSON Lines, CSV, trainer_state.json, TensorBoard, W&B, ampsim.watch; also "
        "compressed by gzip. - is standard input.",
        show_default=False,
    ),
]
Page = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write the page of `ampsim report`.", show_default=False),
]


def explain_log(log: Log, html: Page = None) -> None:
    """Say in plain words what the loss scale did in LOG, and what to try. Exit status 1 if something is wrong.

    Example: ampsim explain train.log --html page.html
    """
    from ampsim.diagnose.explain import explain

    history = read_log(log)
    text, found = explain(history)
    diagnosis, blank, rest = text.partition("\n\n")
    out.print(diagnosis, style="bold red" if found else "green", markup=False)
    _draw(history)
    out.print(f"\n{rest}" if blank else "", markup=False)
    _print_ledger(history)
    if html is not None:
        write_page(history, log, html)
    raise typer.Exit(1 if found else 0)


def _draw(history: "History") -> None:
    """Print the scale over the steps, where it is looked at and the letters are there."""
    from ampsim.diagnose.words import sparkline

    if out.is_terminal and out.encoding.startswith("utf"):
        for line in sparkline(history, min(out.width, 100)):
            out.print(line, style="cyan", markup=False)


def _print_ledger(history: "History") -> None:
    from ampsim.diagnose.infer import ledger
    from ampsim.diagnose.words import scale_text

    rows, inferred = ledger(history)
    if not rows:
        return
    out.print(f"\nSkips, the last {ROWS} of {len(rows)} rows:" if len(rows) > ROWS else "\nSkips:", markup=False)
    table = Table("step", "skipped", "at scale", box=None, pad_edge=False, header_style="bold")
    for first, last, skips, scale in rows[-ROWS:]:
        steps = str(first) if first == last else f"{first} to {last}"
        before = "" if math.isnan(scale) else scale_text(scale)
        table.add_row(steps, f"{'at least ' if inferred else ''}{skips}", before)
    print_table(table)
