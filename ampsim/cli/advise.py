"""``ampsim advise``: settings of a loss scaler for a run."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ampsim.cli import files
from ampsim.cli.report import explain_file
from ampsim.cli.terminal import bold_table, fail, out, print_table, usage_errors
from ampsim.core.advice import UNKNOWN, advise, measure
from ampsim.core.machine import Rule
from ampsim.core.replay.sweep import load_trace, sweep
from ampsim.core.replay.thresholds import ThresholdIndex, index_thresholds

SETTINGS = ("init_scale", "growth_interval", "min_scale", "hysteresis")
NEEDED = """\
expected RUN, or --steps N (epochs x batches per epoch / accumulated batches); for example
  ampsim advise train.log
  ampsim advise thresholds.npy --steps 100000
  ampsim advise --steps 100000 --bad-rate 0.001"""


def _no_epochs(epochs: str | None) -> None:
    if epochs is not None:
        fail(f"--epochs {epochs}: {NEEDED}")


def advise_run(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A log or a record that `ampsim explain` reads, or overflow thresholds, a .npy file.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Steps of the run to come; default: as many as RUN.",
            min=1,
        ),
    ] = None,
    bad_rate: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the steps that overflow at every scale, such as NaN batches; default: as in the "
            "thresholds, else 0.",
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
    epochs: Annotated[
        str | None, typer.Option(hidden=True, callback=_no_epochs)
    ] = None,
) -> None:
    """Print settings of a loss scaler for a run.

    Pass a log of a similar run, its overflow thresholds, or the number of steps alone. For
    thresholds, also prints what these settings and torch's defaults cost: skipped steps, and the
    mean log2 of the loss scale over the steps. At a higher scale, fewer gradients underflow.

    Example: ampsim advise train.log --steps 100000
    """
    known = Recorded()
    with usage_errors():
        if run and files.KINDS.get(run.suffix) == files.THRESHOLDS:
            known = _of_thresholds(run)
        elif run:
            known = _of_log(run)
        length = steps or known.steps
        if not length:
            fail(f"no step numbers in {run}: {NEEDED}" if run else NEEDED)
        rule = advise(
            length,
            known.bad_rate if bad_rate is None else bad_rate,
            summed_ranks,
            threshold=known.threshold,
            lowest=known.lowest,
        )
        table = _table({"advised": rule, "torch's defaults": Rule()}, known.thresholds)
    table.title = f"Settings for {length:,} steps"
    print_table(table)


@dataclass(frozen=True)
class Recorded:
    """What a recorded run says about its settings; see `advise`. `steps` is 0 if not known."""

    steps: int = 0
    bad_rate: float = 0.0
    threshold: float = UNKNOWN
    lowest: float = 1.0
    thresholds: ThresholdIndex | None = None


def _of_thresholds(file: Path) -> Recorded:
    thresholds = load_trace(file)
    measured = measure(thresholds)
    out.print(f"{file}: {len(thresholds):,} steps, {measured.bad_rate:.3g} of them bad")
    return Recorded(len(thresholds), *measured, index_thresholds(thresholds))


def _of_log(file: Path) -> Recorded:
    """Return the steps of a log, and its median loss scale as the threshold of its first steps.

    A log does not show which of its skipped steps overflow at every scale.
    """
    explanation = explain_file(file)
    history = explanation.history
    scales = history.role("scale")
    threshold = statistics.median(scales[0].finite.tolist()) if scales else UNKNOWN
    steps = 0
    for series in history.series:
        numbers = filter(math.isfinite, series.known_steps.tolist())
        steps = max(steps, int(max(numbers, default=-1)) + 1)
    skipped = sum(skip.count for skip in explanation.skips)
    if scales:
        out.print(f"{file}: the median loss scale is {threshold:g}")
    if skipped:
        out.print(
            f"{file}: at least {skipped:,} skipped steps; if some overflow at every scale, such as NaN batches, "
            "pass their share of all steps, e.g. --bad-rate 0.001"
        )
    if explanation.problems:
        out.print(f"{file}: settings may not fix this run; run ampsim explain {file}")
    return Recorded(steps, threshold=threshold)


def _table(rules: Mapping[str, Rule], thresholds: ThresholdIndex | None) -> Table:
    """Return a row of settings per rule, with what they cost where thresholds are known."""
    costs: dict[str, list[str]] = {}
    if thresholds is not None:
        rows = sweep(rules.values(), thresholds)
        costs["skips"] = [f"{count:,}" for count in rows["skips"]]
        costs["mean log2 scale"] = [f"{mean:.2f}" for mean in rows["mean_log2_scale"]]
    table = bold_table("", *SETTINGS, *costs)
    for number, (name, rule) in enumerate(rules.items()):
        settings = [str(getattr(rule, setting)) for setting in SETTINGS]
        table.add_row(name, *settings, *(column[number] for column in costs.values()))
    return table
