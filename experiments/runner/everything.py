"""Run all experiments, or the named ones, and print a table of their outcomes.

Worker processes are reused across experiments, except by those that measure time.
"""

from collections.abc import Sequence

import tyro

from ampsim.core.files import DamagedFileError
from ampsim.runs.record import data_file
from experiments.runner import device
from experiments.runner.cli import STYLE, attempt
from experiments.runner.execute import Options, Outcome, refuse
from experiments.runner.experiment import Experiment, UsageError, stems
from experiments.runner.pool import Workers
from experiments.runner.progress import duration


def main(argv: Sequence[str], named: Sequence[str] = ()) -> int:
    """Run all experiments for the device until one fails, or all `named` ones; return the exit
    status.
    """
    try:
        options = tyro.cli(
            Options, args=list(argv), prog="python -m experiments all", config=STYLE
        )
        chosen = [Experiment(stem) for stem in named or stems()]
        reasons = {one.stem: why_not(one, options.device) for one in chosen}
        chosen = [one for one in chosen if not reasons[one.stem]]
        slug = device.slug(options.device)
        expected = sum(seconds(one, slug, options) for one in chosen)
    except UsageError as error:
        return refuse("experiments", error)
    print(
        f"{len(chosen)} experiments, {options.processes} worker processes. What is not up to date "
        f"takes {duration(expected)} of CPU time according to the committed data. Ctrl-C keeps "
        "finished units."
    )
    for stem, reason in reasons.items():
        if reason:
            print(f"skipped: {stem}: {reason}")
    ended: dict[str, Outcome] = {}
    with Workers() as workers:
        for one in chosen:
            ended[one.stem] = run_one(one, argv, workers)
            if ended[one.stem].status and not named:
                break
    print("CPU seconds of each experiment, and its data:")
    for stem, outcome in ended.items():
        print(f"{stem:20s} {outcome.seconds:6.0f}  {outcome.text}")
    total = sum(outcome.seconds for outcome in ended.values())
    written = [stem for stem, outcome in ended.items() if outcome.written]
    names = ", ".join(written) or "none"
    print(f"{duration(total)} of CPU time; data files written: {names}")
    return max((outcome.status for outcome in ended.values()), default=0)


def why_not(experiment: Experiment, name: str) -> str:
    """Return why an experiment cannot run on the device `name`; empty if it can."""
    if name not in experiment.devices:
        return f"does not run on {name}"
    return experiment.lacks


def seconds(experiment: Experiment, slug: str, options: Options) -> float:
    """Return the CPU seconds that an experiment takes, from the provenance of committed data; 0 if
    its data is reused, or if there is none.

    Units of an experiment are taken to be of equal cost.
    """
    committed, here = experiment.data(slug), experiment.data_here(slug)
    path = here if options.reproduce else committed
    if options.smoke or (path.exists() and not options.force):
        return 0.0
    try:
        origin, rows = data_file.read(committed)
    except (FileNotFoundError, DamagedFileError):
        return 0.0
    computed = len(rows)
    if options.reproduce:
        computed = sum(
            experiment.is_recomputed(row["arm"], row["seed"], origin["seeds"])
            for row in rows
        )
    return float(origin["unit_seconds"]) * computed / len(rows)


def run_one(experiment: Experiment, argv: Sequence[str], workers: Workers) -> Outcome:
    """Run one experiment; in new workers, with the kernels of this processor, if it measures time."""
    if experiment.repeats:
        return attempt(experiment.stem, argv, workers)
    with Workers() as new:
        return attempt(experiment.stem, argv, new)
