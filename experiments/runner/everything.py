"""Every experiment, one after the other, in workers that stay; what measures time has a process of its own."""

import os
import sys
from collections.abc import Sequence

import tyro

from experiments.runner.cli import STYLE
from experiments.runner.cli import main as run_one
from experiments.runner.execute import Options
from experiments.runner.experiment import CURE, Experiment, stems
from experiments.runner.pool import Workers


def main(argv: Sequence[str]) -> int:
    """Run all experiments that the device can run; stop at the first that fails and return its exit status."""
    options = tyro.cli(Options, args=list(argv), prog="python -m experiments all", config=STYLE)
    with Workers() as workers:
        for experiment in map(Experiment, stems()):
            status = 0
            if options.device not in experiment.devices:
                print(f"{experiment.stem}: left out, it does not run on {options.device}")
            elif missing := experiment.missing_packages:
                print(f"{experiment.stem}: left out, {' and '.join(missing)} not installed: {CURE}")
            elif experiment.repeats:
                status = run_one(experiment.stem, argv, workers)
            else:
                status = alone(experiment.stem, argv)
            sys.stdout.flush()
            if status:
                return status
    return 0


def alone(stem: str, argv: Sequence[str]) -> int:
    """Run one experiment in new workers: another one's threads and settings of XLA would be measured with it."""
    environment = dict(os.environ)
    with Workers() as workers:
        try:
            return run_one(stem, argv, workers)
        finally:
            os.environ.clear()
            os.environ |= environment
