"""Every experiment, one after the other: what will be done and how long, one bar, and a table of how it ended.

Worker processes stay from one experiment to the next; what measures time has new ones.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import tyro
from rich.console import Console
from rich.table import Table

from ampsim import records
from experiments.runner import device, made_here
from experiments.runner.cli import STYLE, attempt
from experiments.runner.execute import Options, Outcome
from experiments.runner.experiment import CURE, Experiment, stems
from experiments.runner.pool import Workers
from experiments.runner.progress import Bar, Slot

UNKNOWN = 60.0  # s that an experiment without committed data is expected to take


@dataclass(frozen=True)
class Planned:
    """An experiment that is to be run, or the reason why not."""

    experiment: Experiment
    left_out: str = ""
    seconds: float = 0.0  # expected


@dataclass(frozen=True)
class Ended:
    """An experiment that was run, how, and in how many seconds."""

    stem: str
    outcome: Outcome
    seconds: float


def main(argv: Sequence[str]) -> int:
    """Run all experiments that the device can run; stop at the first that fails and return its exit status."""
    options = tyro.cli(Options, args=list(argv), prog="python -m experiments all", config=STYLE)
    planned = [plan(Experiment(stem), options) for stem in stems()]
    print(announcement(planned, options.processes))
    todo = [item for item in planned if not item.left_out]
    ended: list[Ended] = []
    with Workers() as workers, Bar(max(1.0, sum(item.seconds for item in todo))) as bar:
        done = 0.0
        for item in todo:
            start = time.monotonic()
            slot = Slot(bar, done, item.seconds)
            outcome = run_one(item.experiment, argv, workers, slot)
            done += item.seconds
            ended.append(Ended(item.experiment.stem, outcome, time.monotonic() - start))
            if outcome.status:
                break
    Console(width=max(120, Console().width), highlight=False).print(table(ended), markup=False)
    print(changes(ended))
    return ended[-1].outcome.status if ended else 0


def plan(experiment: Experiment, options: Options) -> Planned:
    """Return what will be done with an experiment; its time is what its committed data took."""
    if options.device not in experiment.devices:
        return Planned(experiment, f"does not run on {options.device}")
    if missing := experiment.missing_packages:
        return Planned(experiment, f"needs {' and '.join(missing)}: {CURE}")
    path = experiment.data(device.slug(options.device))
    if options.smoke:
        return Planned(experiment, seconds=1.0)
    if not options.force and (made_here.is_marked(path) if options.reproduce else path.exists()):
        return Planned(experiment)  # reused, or else the bar is wrong
    seconds = records.read_provenance(path).get("unit_seconds", UNKNOWN) if path.exists() else UNKNOWN
    return Planned(experiment, seconds=seconds / (options.processes if experiment.repeats else 1))


def announcement(planned: Sequence[Planned], processes: int) -> str:
    """Return what will be done, what not, and how long it takes."""
    todo = [item for item in planned if not item.left_out]
    minutes = sum(item.seconds for item in todo) / 60
    reused = sum(not item.seconds for item in todo)
    lines = [
        f"{len(todo)} experiments with {processes} worker processes, about {max(1.0, minutes):.0f} minutes where the "
        f"committed data was made{f'; {reused} are up to date' if reused else ''}. Ctrl-C keeps what is done."
    ]
    lines += [f"left out: {item.experiment.stem}, {item.left_out}" for item in planned if item.left_out]
    return "\n".join(lines)


def run_one(experiment: Experiment, argv: Sequence[str], workers: Workers, slot: Slot) -> Outcome:
    """Run one experiment, in new workers if it measures time: other threads and settings of XLA would be measured."""
    if experiment.repeats:
        return attempt(experiment.stem, argv, workers, slot)
    environment = dict(os.environ)
    with Workers() as own:
        try:
            return attempt(experiment.stem, argv, own, slot)
        finally:
            os.environ.clear()
            os.environ |= environment


def table(ended: Sequence[Ended]) -> Table:
    """Return a line per experiment: how its data stands to the committed data, and its time."""
    shown = Table("experiment", "data", "seconds")
    shown.columns[2].justify = "right"
    for item in ended:
        shown.add_row(item.stem, item.outcome.text, f"{item.seconds:.0f}")
    return shown


def changes(ended: Sequence[Ended]) -> str:
    """Return which data files are other ones now, which is what `git status` names."""
    written = [item.stem for item in ended if item.outcome.written]
    kept = len(ended) - len(written)
    return f"{kept} data files stay as they were; written: {', '.join(written) or 'none'}"
