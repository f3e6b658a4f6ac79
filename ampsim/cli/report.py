"""``ampsim report``: one page of HTML that shows what the loss scale did in a run."""

import contextlib
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
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
    Path | None,
    typer.Option(
        "--out", "-o", help="The page; else RUN with the ending .html.", show_default=False
    ),
]


def report_run(run: Run, page: Page = None) -> None:
    """Write one page of HTML: what the loss scale did in RUN, in words and in charts. It opens without a network.

    Example: ampsim report run.jsonl -o page.html
    """
    history = read_log(run)
    target = page or (run if run.name else run.resolve()).with_suffix(".html")
    write_page(history, run, target)
    out.print(f"wrote {target}")


def read_log(log: Path) -> "History":
    """Return the history in a log, with a bar for a large one; a file that cannot be read ends the command."""
    from ampsim.diagnose.readers.sniff import read_history

    if str(log) == "-":
        with tempfile.NamedTemporaryFile(suffix=" (standard input)") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.flush()
            return read_log(Path(file.name))
    try:
        size = log.stat().st_size
        with Progress(
            console=err, transient=True, disable=not err.is_terminal or size < 1 << 24
        ) as progress:
            task, stopped = progress.add_task("reading", total=size), list[bool]()

            def told(done: int) -> bool:
                progress.update(task, completed=done)
                return bool(stopped)

            with _interrupts(stopped):
                return read_history(log, told)
    except FileNotFoundError:
        fail(f"{log}: no such file; give the path of a training log")
    except (DamagedFileError, ImportError, OSError, ValueError) as error:
        fail(str(error))


def is_there(log: Path) -> bool:
    """Tell whether there is a file of this name; what is too long to be a name has none."""
    try:
        return log.exists()
    except OSError:
        return False


@contextlib.contextmanager
def _interrupts(asked: list[bool]) -> Iterator[None]:
    """Take a first Ctrl-C for a wish to see what was read so far; a second one ends the command."""

    def ask(*_: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write_page(history: "History", log: Path, target: Path) -> None:
    """Write the page of a history; a place that cannot be written ends the command, and the log stays as it is."""
    from ampsim.diagnose.report import report

    try:
        if is_there(log) and target.exists() and target.samefile(log):
            fail(
                f"{target}: the log itself; expected another name for the page, as in -o page.html"
            )
        target.write_text(report(history), encoding="utf-8")
    except OSError as error:
        fail(f"{target}: {error.strerror}; expected a place where a page can be written")
