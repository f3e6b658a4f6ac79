"""Run what a CUDA device can show: `python -m experiments gpu [STEM ...] --minutes N`.

Runs the named experiments in this order, or all that support CUDA. At the time limit, the finished
units are kept. To continue, run the same command; finished experiments do not run again.
"""

import argparse
import signal
from collections.abc import Sequence

from experiments.runner import device, pool
from experiments.runner.execute import Options, Run, execute, refuse
from experiments.runner.experiment import Experiment, UsageError, stems


def main(argv: Sequence[str]) -> int:
    """Run experiments on the device until the time is over.

    Args:
        argv: Options of the command line.

    Returns:
        The exit status: 0 success, 1 an experiment failed, 2 no device, 130 the time is over.
    """
    parser = argparse.ArgumentParser("python -m experiments gpu", description=__doc__)
    possible = [stem for stem in stems() if "cuda" in Experiment(stem).devices]
    parser.add_argument(
        "stems", nargs="*", metavar="STEM", help="default: all that support CUDA"
    )
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="time limit; default: 9"
    )
    given = parser.parse_args(argv)
    try:
        device.require("cuda")
        if unknown := set(given.stems) - set(possible):
            raise UsageError(
                f"{', '.join(unknown)}: expected some of {', '.join(possible)}"
            )
    except UsageError as error:
        return refuse("experiments gpu", error)
    # As Ctrl-C: finished units are kept.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 60 * given.minutes)
    status = 0
    try:
        for stem in given.stems or possible:
            status = max(status, run_experiment(Experiment(stem)))
            if status == 130:
                break
    except KeyboardInterrupt:
        status = 130
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return status


def run_experiment(chosen: Experiment) -> int:
    """Run one experiment with its default settings; return the exit status."""
    try:
        chosen.require_packages()
        path = chosen.data(device.slug("cuda"))
        settings = chosen.module.Config(), Options(device="cuda")
        run = Run(chosen, *settings, path, ["--device", "cuda"], path)
        with pool.kernels(own=not chosen.repeats), pool.Workers() as workers:
            return execute(run, workers).status
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        refuse(chosen.stem, error)
        return 1
