"""``ampsim report``: write an HTML page that shows what the loss scale did in a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampsim.cli.files import explained, is_there
from ampsim.cli.options import Force
from ampsim.cli.terminal import fail, out, usage_errors, write_own

if TYPE_CHECKING:
    from ampsim.runs.explain_log import Explanation

# in each page of this command and of `playground`
MARK = '<meta name="generator" content="ampsim">'
Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A file written by ampsim.runs.watch, or any training log that `ampsim explain` reads.",
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="File to write: .html, or .png or .svg for the chart alone; default: RUN with suffix .html.",
    ),
]


CHART_MARKS = {
    "png": "Software",
    "svg": "Matplotlib",
}  # in each chart that matplotlib writes


def report_run(run: Run, page: Page = None, force: Force = False) -> None:
    """Write an HTML page about the loss scale of a run.

    The page shows what the loss scale did in RUN, in text and charts, and works offline.

    Example: ampsim report run.jsonl -o page.html
    """
    target = page or (run if run.name else run.resolve()).with_suffix(".html")
    kind = target.suffix.removeprefix(".")
    if kind not in ("", "html", *CHART_MARKS):
        fail(f"{page}: expected a name that ends in .html, .png, or .svg")
    with explained(run) as explanation:
        if kind in CHART_MARKS:
            _write_chart(explanation, kind, target, force=force)
        else:
            write_page(explanation, run, target, force=force)
    out.print(f"wrote {target}")


def _write_chart(
    explanation: "Explanation", kind: str, target: Path, *, force: bool
) -> None:
    """Write the chart of the loss scale; exit if the path cannot be written, or holds something
    else.
    """
    from ampsim.runs.report.scale_chart import scale_chart

    with usage_errors():
        picture = scale_chart(explanation, kind)
    write_own(target, CHART_MARKS[kind], picture, force=force)


def write_page(
    explanation: "Explanation", log: Path, target: Path, *, force: bool = False
) -> None:
    """Write the page of a diagnosis; exit if the path cannot be written, or holds something else."""
    from ampsim.runs.report.report import report

    if is_there(log) and target.exists() and target.samefile(log):
        fail(
            f"{target}: this is the log; expected another file for the page, e.g. -o page.html"
        )
    write_own(target, MARK, report(explanation).encode(), force=force)
