"""``ampsim report`` and ``ampsim playground``: pages of HTML, on what the loss scale did in a run, and to try knobs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from ampsim.cli.terminal import err, fail, out
from ampsim.core.files import DamagedFileError

if TYPE_CHECKING:
    from ampsim.diagnose.history import History

Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A file that ampsim.watch wrote, or any training log that `ampsim explain` reads.",
        show_default=False,
    ),
]
Page = Annotated[
    Path | None, typer.Option("--out", "-o", help="The page; else RUN with the ending .html.", show_default=False)
]


def report_run(run: Run, page: Page = None) -> None:
    """Write one page of HTML: what the loss scale did in RUN, in words and in charts. It opens without a network."""
    history = read_log(run)
    target = page or (run if run.name else run.resolve()).with_suffix(".html")
    write_page(history, run, target)
    out.print(f"wrote {target}", markup=False)


def read_log(log: Path) -> "History":
    """Return the history in a log, with a bar for a large one; a file that cannot be read ends the command."""
    from ampsim.diagnose.readers.sniff import read_history

    try:
        size = log.stat().st_size
        with Progress(console=err, transient=True, disable=not err.is_terminal or size < 1 << 24) as progress:
            task = progress.add_task("reading", total=size)
            return read_history(log, lambda done: progress.update(task, completed=done))
    except FileNotFoundError:
        fail(f"{log}: no such file; give the path of a training log")
    except (DamagedFileError, ImportError, OSError, ValueError) as error:
        fail(str(error))


def write_page(history: "History", log: Path, target: Path) -> None:
    """Write the page of a history; a place that cannot be written ends the command, and the log stays as it is."""
    from ampsim.diagnose.report import report

    try:
        if target.exists() and target.samefile(log):
            fail(f"{target}: the log itself; expected another name for the page, as in -o page.html")
        target.write_text(report(history), encoding="utf-8")
    except OSError as error:
        fail(f"{target}: {error.strerror}; expected a place where a page can be written")


Output = Annotated[Path, typer.Option("--output", "-o", help="Where the page is written.")]


def write_playground(output: Output = Path("playground.html")) -> None:
    """Write a page that opens anywhere: every scaler over real runs, or over a log that you paste."""
    from ampsim.diagnose.playground.build import DATA, playground

    try:
        output.write_text(playground(), encoding="utf-8")
    except FileNotFoundError as error:
        cure = "run ampsim from its checkout" if error.filename == str(DATA) else "give the path of a file to write"
        fail(f"{error.filename}: no such file; {cure}")
    except (DamagedFileError, OSError) as error:
        fail(str(error))
    out.print(str(output), markup=False, soft_wrap=True)
