"""``ampsim sweep``: replay a recorded trace under many rules."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ampsim.cli.options import Dialect, Values
from ampsim.cli.terminal import bold_table, print_table, settings, usage_errors
from ampsim.core import dialects
from ampsim.core.replay.sweep import load_trace, sweep

COSTS = ("skips", "skip rate", "mean log2 scale")


def sweep_trace(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="Overflow thresholds of a run, a .npy file."
        ),
    ],
    dialect: Dialect,
    parameters: Values = None,
) -> None:
    """Replay a recorded run under each of some settings.

    Prints a row per combination of the values that -s gives to parameters of DIALECT: skipped
    steps, and the mean log2 of the loss scale over the steps. At a higher scale, fewer gradients
    underflow.

    Example: ampsim sweep thresholds.npy torch.amp.GradScaler -s growth_interval=100,2000
    """
    with usage_errors(dialects.UnknownDialectError, TypeError):
        grid = _grid(parameters or ())
        rules = [dialects.get(dialect, **chosen) for chosen in grid]
    with usage_errors():
        thresholds = load_trace(trace)
        rows = sweep(rules, thresholds)
    table = bold_table(*grid[0], *COSTS, title=f"{len(thresholds):,} steps")
    for chosen, row in zip(grid, rows, strict=True):
        table.add_row(*map(str, chosen.values()), *costs(row))
    print_table(table)


def costs(row: Any) -> tuple[str, str, str]:
    """Return what a row of a sweep says, in the order of `COSTS`."""
    rate, mean = row["skip_rate"], row["mean_log2_scale"]
    return f"{row['skips']:,}", f"{rate:.3g}", f"{mean:.2f}"


def _grid(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Return every combination of the values of ``NAME=VALUE,...``."""
    values: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        for value in listed.split(","):
            parsed = settings("--set", [f"{name}{equals}{value}"])
            values.setdefault(name, []).append(parsed[name])
    combinations = itertools.product(*values.values())
    return [dict(zip(values, each, strict=True)) for each in combinations]
