"""``ampsim report``: write an HTML page that shows what the loss scale did in a run."""

import enum
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from ampsim.cli.files import LOG, expect_kind
from ampsim.cli.options import Force
from ampsim.cli.terminal import err, fail, out, usage_errors
from ampsim.core.files import check_own, replacing

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
        help="File to write; default: RUN with the suffix of the format.",
    ),
]


class Kind(enum.StrEnum):
    """What `ampsim report` writes."""

    html = "html"
    png = "png"
    svg = "svg"


Format = Annotated[
    Kind | None,
    typer.Option(
        "--format",
        help="html: the page; png, svg: the chart of the loss scale. Default: the suffix of --out, else html.",
        show_default=False,
    ),
]
CHART_MARKS = {
    "png": "Software",
    "svg": "Matplotlib",
}  # in each chart that matplotlib writes


def report_run(
    run: Run, page: Page = None, kind: Format = None, force: Force = False
) -> None:
    """Write an HTML page about the loss scale of a run.

    The page shows what the loss scale did in RUN, in text and charts, and works offline.

    Example: ampsim report run.jsonl -o page.html
    """
    explanation = explain_file(run)
    kind = kind or _kind_of(page)
    target = page or (run if run.name else run.resolve()).with_suffix(f".{kind.value}")
    if kind is Kind.html:
        write_page(explanation, run, target, force=force)
    else:
        _write_chart(explanation, kind.value, target, force=force)
    out.print(f"wrote {target}")


def _kind_of(page: Path | None) -> Kind:
    """Return the format that the suffix of a file names; exit if it names none."""
    suffix = page.suffix.removeprefix(".") if page else ""
    if suffix and suffix not in set(Kind):
        kinds = ", ".join(f".{kind.value}" for kind in Kind)
        fail(f"{page}: expected a name that ends in {kinds}, or pass --format")
    return Kind(suffix or "html")


def _write_chart(
    explanation: "Explanation", kind: str, target: Path, *, force: bool
) -> None:
    """Write the chart of the loss scale; exit if the path cannot be written, or holds something
    else.
    """
    from ampsim.runs.report.scale_chart import scale_chart

    with usage_errors():
        check_own(target, CHART_MARKS[kind], force=force)
        picture = scale_chart(explanation, kind)
        with replacing(target) as file:
            file.write(picture)


def explain_file(log: Path) -> "Explanation":
    """Return the diagnosis of a log, with a progress bar if it is large; exit if it cannot be read."""
    from ampsim.runs.explain_log import explain
    from ampsim.runs.read.read import read_log

    expect_kind(log, LOG)
    if str(log) == "-":
        with tempfile.NamedTemporaryFile(suffix=" (standard input)") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.flush()
            return explain_file(Path(file.name))
    with usage_errors():
        size = log.stat().st_size
        is_quick = not err.is_terminal or size < 1 << 24
        with Progress(console=err, transient=True, disable=is_quick) as progress:
            task = progress.add_task("reading", total=size)
            return explain(
                read_log(log, lambda done: progress.update(task, completed=done))
            )


def is_there(log: Path) -> bool:
    """Return whether a file of this name exists; False if the name is too long for a file."""
    try:
        return log.exists()
    except OSError:
        return False


def write_page(
    explanation: "Explanation", log: Path, target: Path, *, force: bool = False
) -> None:
    """Write the page of a diagnosis; exit if the path cannot be written, or holds something else."""
    from ampsim.runs.report.report import report

    with usage_errors():
        if is_there(log) and target.exists() and target.samefile(log):
            fail(
                f"{target}: this is the log; expected another file for the page, e.g. -o page.html"
            )
        check_own(target, MARK, force=force)
        with replacing(target) as file:
            file.write(report(explanation).encode())
