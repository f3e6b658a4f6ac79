"""Run all experiments, or the named ones, and print a table of their outcomes.

Worker processes are reused across experiments, except by those that measure time.
"""

import time
from collections.abc import Mapping, Sequence

import tyro
from rich.console import Console
from rich.table import Table

from experiments.runner.cli import STYLE, attempt, data_path, refuse
from experiments.runner.execute import Options, Outcome, seconds_of
from experiments.runner.experiment import INSTALL, Experiment, UsageError, stems
from experiments.runner.pool import Workers
from experiments.runner.progress import Bar, duration


def main(argv: Sequence[str], named: Sequence[str] = ()) -> int:
    """Run all experiments for the device until one fails, or all `named` ones; return the exit
    status.
    """
    try:
        options = tyro.cli(
            Options, args=list(argv), prog="python -m experiments all", config=STYLE
        )
        reasons = {
            stem: why_not(Experiment(stem), options.device) for stem in named or stems()
        }
        expected = {
            stem: seconds(Experiment(stem), options)
            for stem in reasons
            if not reasons[stem]
        }
    except UsageError as error:
        return refuse("experiments", error)
    print(announcement(reasons, expected, options.processes))
    table = Table("experiment", "data", "seconds")
    table.columns[2].justify = "right"
    ended: dict[str, Outcome] = {}
    bar = Bar(expected)
    with Workers() as workers:
        for stem in expected:
            start = time.monotonic()
            ended[stem] = run_one(Experiment(stem), argv, workers, bar)
            table.add_row(stem, ended[stem].text, f"{time.monotonic() - start:.0f}")
            if ended[stem].status and not named:
                break
    Console(width=max(120, Console().width), highlight=False).print(table, markup=False)
    written = [stem for stem, outcome in ended.items() if outcome.written]
    print(
        f"{len(ended) - len(written)} data files unchanged; written: {', '.join(written) or 'none'}"
    )
    return max((outcome.status for outcome in ended.values()), default=0)


def why_not(experiment: Experiment, name: str) -> str:
    """Return why an experiment cannot run on the device `name`; empty if it can."""
    if name not in experiment.devices:
        return f"does not run on {name}"
    missing = experiment.missing_packages
    return f"requires {' and '.join(missing)}: {INSTALL}" if missing else ""


def seconds(experiment: Experiment, options: Options) -> float | None:
    """Return the seconds that an experiment takes: 0 if its data is reused, None if unknown."""
    if options.smoke:
        return None
    if not options.force and data_path(experiment, options).exists():
        return 0.0
    return seconds_of(experiment, options)


def announcement(
    reasons: Mapping[str, str], expected: Mapping[str, float | None], processes: int
) -> str:
    """Return which experiments run, which are skipped, and the expected time."""
    reused = sum(taken == 0 for taken in expected.values())
    unknown = [stem for stem, taken in expected.items() if taken is None]
    time = duration(sum(taken or 0.0 for taken in expected.values()))
    lines = [
        f"{len(expected)} experiments ({reused} up to date), {processes} worker processes. Expected time, from the "
        f"committed data: {time}. Ctrl-C keeps finished units."
    ]
    lines += [f"time unknown: {', '.join(unknown)}"] if unknown else []
    skipped = (
        f"skipped: {stem}: {reason}" for stem, reason in reasons.items() if reason
    )
    return "\n".join([*lines, *skipped])


def run_one(
    experiment: Experiment, argv: Sequence[str], workers: Workers, bar: Bar
) -> Outcome:
    """Run one experiment; in new workers, with the kernels of this processor, if it measures time."""
    if experiment.repeats:
        return attempt(experiment.stem, argv, workers, bar)
    with Workers() as new:
        return attempt(experiment.stem, argv, new, bar)
