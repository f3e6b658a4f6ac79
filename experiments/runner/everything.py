"""Every experiment, or those that are named: what will be done and how long, one bar, and a table of how it ended.

Worker processes stay from one experiment to the next, those with a processor's own kernels apart from the others; what
measures time has new ones.
"""

import time
from collections.abc import Mapping, Sequence

import tyro
from rich.console import Console
from rich.table import Table

from ampsim import records
from experiments.runner import device
from experiments.runner.cli import STYLE, attempt, data_path, refuse
from experiments.runner.execute import Options, Outcome
from experiments.runner.experiment import CURE, Experiment, UsageError, stems
from experiments.runner.pool import Workers
from experiments.runner.progress import Bar

UNKNOWN = 60.0  # s that an experiment without committed data is expected to take


def main(argv: Sequence[str], named: Sequence[str] = ()) -> int:
    """Run all experiments that the device can run, and stop at the first that fails; or those `named`, whatever fails.

    Returns the exit status.
    """
    try:
        options = tyro.cli(Options, args=list(argv), prog="python -m experiments all", config=STYLE)
        reasons = {stem: why_not(Experiment(stem), options.device) for stem in named or stems()}
        expected = {
            stem: seconds(Experiment(stem), options) for stem in reasons if not reasons[stem]
        }
    except UsageError as error:
        return refuse("experiments", error)
    print(announcement(reasons, expected, options.processes))
    table = Table("experiment", "data", "seconds")
    table.columns[2].justify = "right"
    ended: dict[str, Outcome] = {}
    with Workers() as workers, Workers() as own, Bar(max(1.0, sum(expected.values()))) as bar:
        for stem in expected:
            start = time.monotonic()
            bar.expect(expected[stem])
            experiment = Experiment(stem)
            ended[stem] = run_one(experiment, argv, workers if experiment.repeats else own, bar)
            table.add_row(stem, ended[stem].text, f"{time.monotonic() - start:.0f}")
            if ended[stem].status and not named:
                break
    Console(width=max(120, Console().width), highlight=False).print(table, markup=False)
    written = [stem for stem, outcome in ended.items() if outcome.written]
    print(
        f"{len(ended) - len(written)} data files stay as they were; written: {', '.join(written) or 'none'}"
    )
    return max((outcome.status for outcome in ended.values()), default=0)


def why_not(experiment: Experiment, name: str) -> str:
    """Return why an experiment cannot be run on the device `name`; empty if it can."""
    if name not in experiment.devices:
        return f"does not run on {name}"
    missing = experiment.missing_packages
    return f"needs {' and '.join(missing)}: {CURE}" if missing else ""


def seconds(experiment: Experiment, options: Options) -> float:
    """Return how long an experiment will take, which is what its committed data took; 0 if there is data to reuse."""
    if options.smoke:
        return 1.0
    if not options.force and data_path(experiment, options).exists():
        return 0.0
    path = experiment.data(options.ask(device.slug, options.device))
    taken = records.read_provenance(path).get("unit_seconds", UNKNOWN) if path.exists() else UNKNOWN
    return float(taken) / (options.processes if experiment.repeats else 1)


def announcement(reasons: Mapping[str, str], expected: Mapping[str, float], processes: int) -> str:
    """Return what will be done, what not, and how long it takes."""
    minutes = max(1.0, sum(expected.values()) / 60)
    reused = sum(not taken for taken in expected.values())
    lines = [
        f"{len(expected)} experiments with {processes} worker processes, about {minutes:.0f} minutes where the "
        f"committed data was made{f'; {reused} are up to date' if reused else ''}. Ctrl-C keeps what is done."
    ]
    return "\n".join(
        [*lines, *(f"left out: {stem}, {reason}" for stem, reason in reasons.items() if reason)]
    )


def run_one(experiment: Experiment, argv: Sequence[str], workers: Workers, bar: Bar) -> Outcome:
    """Run one experiment, in new workers if it measures time: other threads and settings of XLA would be measured."""
    if not experiment.measures_time:
        return attempt(experiment.stem, argv, workers, bar)
    with Workers(workers.answers) as new:
        return attempt(experiment.stem, argv, new, bar)
