"""``ampsim explain``: say what the loss scale did in a training log."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from ampsim.cli.terminal import err, fail, out
from ampsim.core.files import DamagedFileError

Log = Annotated[
    Path,
    typer.Argument(
        help="A training log: console text, JSON Lines, CSV, trainer_state.json, TensorBoard, W&B, ampsim.watch.",
        show_default=False,
    ),
]


def explain_log(log: Log) -> None:
    """Say in plain words what the loss scale did in LOG, and what to try. Exit status 1 if something is wrong."""
    from ampsim.diagnose.explain import explain
    from ampsim.diagnose.readers.sniff import read_history

    try:
        size = log.stat().st_size
        with Progress(console=err, transient=True, disable=not err.is_terminal or size < 1 << 24) as progress:
            task = progress.add_task("reading", total=size)
            history = read_history(log, lambda done: progress.update(task, completed=done))
    except FileNotFoundError:
        fail(f"{log}: no such file; give the path of a training log")
    except (DamagedFileError, ImportError, OSError, ValueError) as error:
        fail(str(error))
    text, found = explain(history)
    out.print(text, markup=False)
    raise typer.Exit(1 if found else 0)
