"""``ampsim sweep``: replay recorded traces under many rules."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ampsim.cli.options import Dialect, Values
from ampsim.cli.terminal import bold_table, fail, print_table, settings, usage_errors
from ampsim.core import dialects
from ampsim.core.replay.sweep import FileSweep, sweep_file


def sweep_folder(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of overflow thresholds, one .npy file per run.",
        ),
    ],
    dialect: Dialect,
    parameters: Values = None,
) -> None:
    """Replay recorded runs under each of some settings.

    Prints a row per combination of the values that -s gives to parameters of DIALECT: skipped steps,
    and the mean log2 of the loss scale over the steps. At a higher scale, fewer gradients underflow.

    Example: ampsim sweep traces torch.amp.GradScaler -s growth_interval=100,2000
    """
    with usage_errors(dialects.UnknownDialectError):
        grid = _grid(parameters or ())
        rules = [dialects.get(dialect, **chosen) for chosen in grid]
        paths = sorted(folder.glob("*.npy"))
        if not paths:
            fail(
                f"{folder}: expected *.npy files of overflow thresholds; write them with numpy.save"
            )
        done = [sweep_file(rules, path) for path in paths]
    print_table(_table(grid, done))


def _grid(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Return every combination of the values of ``NAME=VALUE,...``."""
    values: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        for value in listed.split(","):
            values.setdefault(name, []).append(
                settings("--set", [name + equals + value])[name]
            )
    return [
        dict(zip(values, each, strict=True))
        for each in itertools.product(*values.values())
    ]


def _table(grid: Sequence[dict[str, Any]], done: Sequence[FileSweep]) -> Table:
    """Return a row per rule, over all steps of all traces."""
    total = sum(each.steps for each in done)
    table = bold_table(*grid[0], "skips", "skip rate", "mean log2 scale")
    table.title = f"{total:,} steps of {len(done)} traces"
    for number, chosen in enumerate(grid):
        rows = [(each.steps, each.rows[number]) for each in done]
        skips = sum(int(row["skips"]) for _, row in rows)
        mean = sum(steps * float(row["mean_log2_scale"]) for steps, row in rows) / total
        rate = f"{skips / total:.3g}"
        table.add_row(*map(str, chosen.values()), f"{skips:,}", rate, f"{mean:.2f}")
    return table
