"""``ampsim explain``: diagnose the loss scale of a run from its training log."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ampsim.cli.files import explained, is_there
from ampsim.cli.terminal import fail, out

if TYPE_CHECKING:
    from ampsim.runs.explain_log import Explanation

STYLES = {
    "no problem found": "green",
    "problem": "bold red",
    "too little to tell": "yellow",
}

Log = Annotated[
    Path | None,
    typer.Argument(
        metavar="LOG",
        help="A training log: console text, JSON Lines, CSV, trainer_state.json, TensorBoard, W&B, or a run file; "
        "gzip is supported. Default: standard input, as -. Or quote an error message or lines of a log.",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the findings as JSON, with all that a page draws."
    ),
]
Why = Annotated[
    bool,
    typer.Option("--why", help="Print the lines of the log that support each finding."),
]


def explain_log(log: Log = None, as_json: AsJson = False, why: Why = False) -> None:
    """Diagnose the loss scale of a run from its training log.

    Prints what is wrong, the likely cause, and fixes. For a page with charts, use `ampsim report`.

    Example: ampsim explain train.log; quote the text of an error: ampsim explain "No inf checks were
    recorded"
    """
    if log is None:
        if sys.stdin.isatty():
            fail("LOG is missing: pass a file, - for standard input, or a quoted text")
        log = Path("-")
    if " " in str(log) and not is_there(log):
        _print(_explain_text(str(log)), as_json=as_json, why=why)
    with explained(log) as explanation:
        _print(explanation, as_json=as_json, why=why)


def _print(explanation: "Explanation", *, as_json: bool, why: bool) -> NoReturn:
    """Print a diagnosis, and exit with its status."""
    if as_json:
        print(json.dumps(explanation.to_json(), indent=1))
    else:
        first, _, rest = explanation.text(why=why).partition("\n")
        out.print(first, style=STYLES[explanation.verdict])
        out.print(rest)
    raise typer.Exit(explanation.status)


def _explain_text(text: str) -> "Explanation":
    """Return the diagnosis of an error message or of lines of a log; exit if there is nothing to
    diagnose.
    """
    from ampsim.runs.explain_log import explain
    from ampsim.runs.read.history import NothingReadError

    try:
        return explain(text.splitlines(keepends=True))
    except NothingReadError:
        fail(
            "the argument is neither a file nor a text that ampsim can explain: it has no known error and no line "
            f"about a loss scale. It begins with {text[:60]!r}. "
            "docs/errors/index.md lists the known errors; for a NaN see docs/how-to/nan.md"
        )
