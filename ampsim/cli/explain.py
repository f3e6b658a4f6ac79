"""``ampsim explain``: diagnose the loss scale of a run from its training log."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ampsim.cli.report import is_there, read_log, write_page
from ampsim.cli.terminal import fail, out, print_table

if TYPE_CHECKING:
    from ampsim.diagnose.history import History

ROWS = 10
"""Number of skips to print: the last ones."""
STYLES = {"healthy": "green", "wrong": "bold red", "cannot tell": "yellow"}

Log = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="A training log: console text, JSON Lines, CSV, trainer_state.json, TensorBoard, W&B, or a run file; "
        "gzip is supported. Pass - for standard input, or quote an error message or lines of a log.",
        show_default=False,
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Also write the page of `ampsim report`.", show_default=False
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the findings as JSON, with their lines and bounds.")
]
Why = Annotated[
    bool, typer.Option("--why", help="Print the lines of the log that support each finding.")
]


def explain_log(log: Log, html: Page = None, as_json: AsJson = False, why: Why = False) -> None:
    """Diagnose the loss scale of a run from its training log, and suggest fixes.

    Exit status: 0 no problem found, 1 problem, 2 LOG cannot be read, 3 LOG has too little to tell.

    Example: ampsim explain train.log --html page.html
    """
    from ampsim.diagnose.explain import STATUS, explain, in_words
    from ampsim.diagnose.formats import error_in

    is_text = " " in str(log) and not is_there(log)
    if is_text and (error := error_in(str(log))) is not None:
        out.print(f"{error['name'].upper()}: {error['cause']}\n\nFix:\n- {error['fix']}")
        raise typer.Exit(1)
    history = _pasted(str(log)) if is_text else read_log(log)
    explanation = explain(history)
    if as_json:
        print(json.dumps(explanation.to_json(), indent=1))
    else:
        diagnosis, blank, rest = in_words(explanation, lines=why).partition("\n\n")
        out.print(diagnosis, style=STYLES[explanation.verdict])
        _draw(history)
        out.print(f"\n{rest}" if blank else "")
        _print_ledger(history)
    if html is not None:
        write_page(history, log, html)
    raise typer.Exit(STATUS[explanation.verdict])


def _pasted(text: str) -> "History":
    """Return the history in lines of a log; exit if they have none."""
    from ampsim.diagnose.readers.text import TextReader

    history = TextReader("text").read(text.splitlines())
    if not len(history.step):
        fail(
            f"{text[:80]}: no such file; read as text, it has no known error and no line about a loss scale. "
            "docs/errors/index.md lists the known errors; for a NaN see docs/how-to/nan.md"
        )
    return history


def _draw(history: "History") -> None:
    """Print the scale over the steps, on a terminal whose encoding has the characters."""
    from ampsim.diagnose.wording import sparkline

    if out.is_terminal and out.encoding.startswith("utf"):
        for line in sparkline(history, min(out.width, 100)):
            out.print(line, style="cyan")


def _print_ledger(history: "History") -> None:
    from ampsim.diagnose.explain import least_skips
    from ampsim.diagnose.report import skip_rows
    from ampsim.diagnose.wording import scale_text

    rows = skip_rows(history)
    if not rows:
        return
    known, least = sum(row[2] for row in rows), least_skips(history)
    of = f", {known} of at least {least}" if known < least else ""
    more = f", the last {ROWS} of {len(rows)} rows" if len(rows) > ROWS else ""
    out.print(f"\nSkips whose {history.unit}s are known{of}{more}:")
    unit = "step, of epochs and batches" if history.settings.get("composed") else history.unit
    table = Table(unit, "skipped", "at scale", box=None, pad_edge=False, header_style="bold")
    for first, last, skips, scale in rows[-ROWS:]:
        low = math.floor(first)
        steps = (
            f"from {low}"
            if math.isinf(last)
            else str(low)
            if low == last
            else f"{low} to {math.ceil(last)}"
        )
        table.add_row(steps, str(skips), "" if scale is None else scale_text(scale))
    print_table(table)
