"""``ampsim advise``: settings of a loss scaler for a run like a recorded one."""

from pathlib import Path
from typing import Annotated

import typer

from ampsim.cli.terminal import bold_table, print_table, usage_errors
from ampsim.core.advice import advise, measure
from ampsim.core.machine import Rule
from ampsim.core.replay.sweep import load_trace, sweep

SETTINGS = ("init_scale", "growth_interval", "min_scale", "hysteresis")


def advise_run(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="Overflow thresholds of a run, a .npy file, as for `ampsim sweep`.",
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Steps of the run to come; default: as many as TRACE.",
            min=1,
        ),
    ] = None,
    summed_ranks: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Ranks whose fp16 gradients are summed before the sum is divided.",
            min=1,
        ),
    ] = 1,
) -> None:
    """Print settings for a run like a recorded one.

    Also prints what these settings and torch's defaults cost in TRACE: skipped steps, and the mean
    log2 of the loss scale over the steps. At a higher scale, fewer gradients underflow.

    Example: ampsim advise thresholds.npy --steps 100000
    """
    with usage_errors():
        thresholds = load_trace(trace)
        measured = measure(thresholds)
        rule = advise(
            steps or len(thresholds),
            measured.bad_rate,
            summed_ranks,
            threshold=measured.threshold,
            lowest=measured.lowest,
        )
        rules = {"advised": rule, "torch's defaults": Rule()}
        rows = sweep(rules.values(), thresholds)
    table = bold_table("", *SETTINGS, "skips", "mean log2 scale")
    trace_length = f"{len(thresholds):,} steps, {measured.bad_rate:.3g} of them bad"
    run_length = f"{steps:,} steps" if steps else "as many steps; --steps N for others"
    table.title = f"{trace_length}\nSettings for {run_length}"
    for (name, chosen), row in zip(rules.items(), rows, strict=True):
        values = (str(getattr(chosen, setting)) for setting in SETTINGS)
        table.add_row(
            name, *values, f"{row['skips']:,}", f"{row['mean_log2_scale']:.2f}"
        )
    print_table(table)
