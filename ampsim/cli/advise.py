"""``ampsim advise``: settings of a loss scaler for a run."""

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampsim.cli.files import KINDS, THRESHOLDS, explained
from ampsim.cli.sweep import COSTS, costs
from ampsim.cli.terminal import bold_table, fail, out, print_table, usage_errors
from ampsim.core.advice import UNKNOWN, Measured, advise, measure
from ampsim.core.machine import Rule
from ampsim.core.replay.sweep import load_trace, sweep
from ampsim.runs.findings.evidence import Evidence
from ampsim.runs.findings.scale import before_collapse
from ampsim.runs.read.rows import as_number

if TYPE_CHECKING:
    from ampsim.runs.explain_log import Explanation

SETTINGS = ("init_scale", "growth_interval", "min_scale", "hysteresis")
NEEDED = "expected RUN with numbered steps, or --steps N"


def _whole(text: str) -> int:
    """Return a number of steps, such as 100000, 100k, or 1e5."""
    plain = text.lower().replace("_", "").replace(",", "")
    number = as_number(plain.replace("k", "e3").replace("m", "e6"))
    if number is None or not number.is_integer() or number < 1:
        raise typer.BadParameter(
            f"{text}: expected a whole number of at least 1, such as 100000, 100k, or 1e5"
        )
    return int(number)


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
            help="Steps of the run to come: epochs x batches per epoch, such as 100000 or 100k; default: as many "
            "as RUN.",
            parser=_whole,
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
) -> None:
    """Print settings of a loss scaler for a run.

    Pass a log of a similar run, its overflow thresholds, or the number of steps alone. For
    thresholds, also prints what these settings and torch's defaults cost: skipped steps, and the
    mean log2 of the loss scale over the steps. At a higher scale, fewer gradients underflow.

    Example: ampsim advise train.log; ampsim advise thresholds.npy; ampsim advise --steps 100000
    --bad-rate 0.001 (steps: epochs x batches per epoch)
    """
    measured, recorded, thresholds = Measured(0.0, UNKNOWN, 1.0), 0, None
    with usage_errors():
        if run and KINDS.get(run.suffix) == THRESHOLDS:
            thresholds = load_trace(run)
            measured, recorded = measure(thresholds), len(thresholds)
            out.print(f"{run}: {recorded:,} steps, {measured.bad_rate:.3g} of them bad")
        elif run:
            with explained(run) as explanation:
                measured, recorded = _measure_log(run, explanation)
        length = steps or recorded
        if not length:
            raise typer.BadParameter(NEEDED)
        rule = advise(
            length,
            measured.bad_rate if bad_rate is None else bad_rate,
            summed_ranks,
            threshold=measured.threshold,
            lowest=measured.lowest,
        )
        rules = {"advised": rule, "torch's defaults": Rule()}
        table = bold_table("", *SETTINGS, title=f"Settings for {length:,} steps")
        for name, chosen in rules.items():
            table.add_row(name, *(str(getattr(chosen, each)) for each in SETTINGS))
        print_table(table)
        if thresholds is not None:
            table = bold_table("", *COSTS, title=f"Their costs in {run}")
            for name, row in zip(rules, sweep(rules.values(), thresholds), strict=True):
                table.add_row(name, *costs(row))
            print_table(table)


def _measure_log(log: Path, explanation: "Explanation") -> tuple[Measured, int]:
    """Print what a log shows of settings; return the arguments of `advise`, and the numbered steps.

    The median loss scale before a collapse stands for the threshold of the first steps. A log does
    not show which skipped steps overflow at every scale.
    """
    steps, threshold = -1.0, UNKNOWN
    for series in explanation.history.series:
        numbered = filter(math.isfinite, series.known_steps.tolist())
        steps = max([steps, *numbered])
    run = Evidence(explanation.history)
    usable = before_collapse(run)
    if len(usable):
        threshold = statistics.median(usable.tolist())
        where = " before the collapse" if len(usable) < len(run.scale.finite) else ""
        out.print(f"{log}: the median loss scale{where} is {threshold:g}")
    elif len(run.scale):
        fail(
            f"{log}: the loss scale collapsed from the start, so it tells no setting; "
            f"expected a run that trains. Run ampsim explain {log}"
        )
    else:
        out.print(
            f"{log}: the log shows no loss scale, so init_scale is one above most thresholds; the scaler "
            "lowers it in the first steps"
        )
    if skipped := sum(skip.count for skip in explanation.skips):
        out.print(
            f"{log}: at least {skipped:,} skipped steps; if some overflow at every scale, such as NaN "
            "batches, pass their share of all steps, e.g. --bad-rate 0.001"
        )
    if explanation.problems:
        out.print(f"{log}: settings may not fix this run; run ampsim explain {log}")
    return Measured(0.0, threshold, 1.0), int(steps) + 1
